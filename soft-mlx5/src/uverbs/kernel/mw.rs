//! Memory windows: keys that a queue pair binds to a part of a region, by a WQE.

use super::Call;
use super::abi::uverbs::{AllocMw, AllocMwResp};
use super::abi::{Abi, mlx5};
use super::async_event::Reported;
use super::errno::{EINVAL, EOPNOTSUPP};
use super::pd::Pd;
use super::udata::Request;
use crate::commands::objects::{Id, Kind};
use crate::objects::memory::Space;
use crate::objects::mkey::{Form, Mode};
use crate::objects::{MkeyAttr, Result};

/// Object type of a memory window.
pub const TYPE: u16 = 8;

const TYPE_1: u8 = 1;
const TYPE_2: u8 = 2;
/// Bytes of an entry of the list of a key, and entries in which its room is counted.
const ENTRY: usize = 16;
const ENTRIES: usize = 4;

/// A memory window.
#[derive(Debug)]
pub struct Mw {
    /// Index of its key. The program changes the lower eight bits of the key.
    index: u32,
}

/// Runs ALLOC_MW.
pub fn write_alloc(call: &mut Call, request: &Request) -> Result<()> {
    call.context()?;
    let core: AllocMw = request.core.input.request()?;
    let driver: mlx5::AllocMw = request.driver.input.request()?;
    let pd = call.get::<Pd>(core.pd_handle)?.pdn;
    if !matches!(core.mw_type, TYPE_1 | TYPE_2) {
        return Err(EINVAL);
    }
    if driver.comp_mask != 0 || driver.reserved != [0; 3] {
        return Err(EOPNOTSUPP);
    }
    call.admit(super::MR)?;
    let attr = MkeyAttr { pd, va: 0, iova: 0, length: 0, access: 0 };
    let form = Form {
        mode: Mode::Klm,
        umr: true,
        free: true,
        remote_invalidate: core.mw_type == TYPE_2,
        capacity: usize::from(driver.num_klms).max(1).next_multiple_of(ENTRIES) * ENTRY,
        window: true,
        ..Form::default()
    };
    let key = call.nic().create_formed_mkey(attr, form, Space::Process, &[], None)?;
    let index = key.0 >> 8;
    let mw_handle = call.enter(Id(Kind::Mkey, index), &[core.pd_handle], Mw { index });
    let response_length = request.driver.output.len.min(mlx5::AllocMwResp::SIZE) as u32;
    let answered = request.driver.output.put(&mlx5::AllocMwResp { comp_mask: 0, response_length });
    let answered = answered.and_then(|()| request.core.output.respond(&AllocMwResp { mw_handle, rkey: key.0 }));
    call.or_destroy(mw_handle, answered)
}

impl Call<'_> {
    pub(super) fn destroy_mw(&mut self, handle: u32) -> Result<Reported> {
        let index = self.get::<Mw>(handle)?.index;
        self.nic().destroy_mkey_index(index)?;
        Ok(Reported::default())
    }
}
