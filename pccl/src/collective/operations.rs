//! The things that the operations of one session have in common.

use super::{algorithm::Programs, early::EarlyBudget, links::Links, table::OpTable};
use crate::{backups::BackupPool, control::Control, world::Told};
use pccl_flight::Recorder;
use std::sync::Arc;

/// Everything that an operation needs of its session.
#[derive(Debug)]
pub(crate) struct Operations {
    pub(crate) flight: Arc<Recorder>,
    pub(crate) control: Arc<Control>,
    pub(crate) told: Arc<Told>,
    pub(crate) table: Arc<OpTable>,
    pub(crate) links: Links,
    pub(crate) backups: BackupPool,
    pub(crate) programs: Programs,
    pub(crate) early: Arc<EarlyBudget>,
}
