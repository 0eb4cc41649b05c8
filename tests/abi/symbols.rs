//! The exports of the shared library, read from the file itself.

use crate::build::{library, root};
use std::{collections::BTreeSet, fs};

fn number<const N: usize>(bytes: &[u8], at: usize) -> usize {
    let mut value = [0; 8];
    value[..N].copy_from_slice(&bytes[at..at + N]);
    usize::try_from(u64::from_le_bytes(value)).expect("fits")
}

fn text(bytes: &[u8], at: usize) -> String {
    let end = bytes[at..].iter().position(|byte| *byte == 0).expect("a text ends");
    String::from_utf8_lossy(&bytes[at..at + end]).into_owned()
}

/// Sections of an ELF file of 64 bits by their types: where, how long, and the linked section.
fn sections(file: &[u8]) -> Vec<(usize, usize, usize, usize)> {
    assert_eq!(&file[..6], b"\x7fELF\x02\x01", "a little-endian ELF file of 64 bits");
    let (table, size, count) = (number::<8>(file, 40), number::<2>(file, 58), number::<2>(file, 60));
    let section = |index| {
        let at = table + index * size;
        (
            number::<4>(file, at + 4),
            number::<8>(file, at + 24),
            number::<8>(file, at + 32),
            number::<4>(file, at + 40),
        )
    };
    (0..count).map(section).collect()
}

/// Names of the symbols that others can link with, and the SONAME.
fn exports(file: &[u8]) -> (BTreeSet<String>, String) {
    const DYNSYM: usize = 11;
    const DYNAMIC: usize = 6;
    const SONAME: usize = 14;
    let sections = sections(file);
    let find = |kind| *sections.iter().find(|section| section.0 == kind).expect("the section is there");
    let (_, at, size, strings) = find(DYNSYM);
    let names = sections[strings].1;
    let symbols = (at..at + size).step_by(24).filter(|at| {
        let defined = number::<2>(file, at + 6) != 0;
        let local = number::<1>(file, at + 4) >> 4 == 0;
        defined && !local
    });
    let symbols = symbols.map(|at| text(file, names + number::<4>(file, at))).collect();
    let (_, at, size, strings) = find(DYNAMIC);
    let soname = (at..at + size).step_by(16).find(|at| number::<8>(file, *at) == SONAME).expect("a SONAME");
    (symbols, text(file, sections[strings].1 + number::<8>(file, soname + 8)))
}

/// The text of both headers of a language.
fn headers(extension: &str) -> String {
    let read = |name: &str| {
        let path = root().join("include").join(name).with_extension(extension);
        fs::read_to_string(path).expect("the header")
    };
    ["pccl", "pccl_diloco", "pccl_samples"].map(read).concat()
}

/// Functions that the headers declare.
pub(crate) fn declared() -> BTreeSet<String> {
    let header = headers("h");
    let declarations = header.split("PCCL_EXPORT ").skip(1).filter_map(|rest| rest.split_once('('));
    let names = declarations.map(|(front, _)| front.rsplit([' ', '*']).next().expect("a name").to_owned());
    names.filter(|name| name.starts_with("pccl")).collect()
}

#[test]
#[cfg(all(target_os = "linux", target_pointer_width = "64", target_endian = "little"))]
fn the_library_exports_what_the_header_declares_and_nothing_else() {
    let file = fs::read(library().join("libpccl.so")).expect("the library");
    let (symbols, soname) = exports(&file);
    assert_eq!(symbols, declared());
    assert_eq!(soname, "libpccl.so.0");
    assert!(declared().len() > 19, "{:?}", declared());
    assert!(library().join("libpccl.a").exists());
}

#[test]
fn the_header_for_cpp_has_all_functions() {
    let header = headers("hpp");
    let missing: Vec<_> =
        declared().into_iter().filter(|name| !header.contains(&format!("{name}("))).collect();
    assert!(missing.is_empty(), "the headers for C++ lack {missing:?}");
}
