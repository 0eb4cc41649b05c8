//! One test needs the machine for itself, because it overloads it; the others may run beside each other.

use parking_lot::{RwLock, RwLockReadGuard, RwLockWriteGuard};

static MACHINE: RwLock<()> = RwLock::new(());

/// For a test that others may run beside.
pub(crate) fn shared() -> RwLockReadGuard<'static, ()> {
    MACHINE.read()
}

/// For a test that has the machine for itself.
pub(crate) fn alone() -> RwLockWriteGuard<'static, ()> {
    MACHINE.write()
}
