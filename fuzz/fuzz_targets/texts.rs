//! Texts that users and environments give: keys, names, addresses. Each is refused, or reads back to itself.
#![no_main]

use tinysockets::{
    address::HostPort,
    key::{AcceptedKeys, RunAddress, RunKey, RunName},
};

libfuzzer_sys::fuzz_target!(|text: &str| {
    if let Ok(place) = text.parse::<HostPort>() {
        assert_eq!(place.to_string().parse(), Ok(place));
    }
    if let Ok(key) = text.parse::<RunKey>() {
        assert_eq!(key.to_text().parse(), Ok(key));
    }
    if let Ok(name) = text.parse::<RunName>() {
        assert_eq!(name.as_str().parse(), Ok(name));
    }
    let _ = text.parse::<AcceptedKeys>();
    if let Ok(address) = text.parse::<RunAddress>() {
        assert!(address.masters().next().is_some());
    }
});
