//! Memory regions.

use super::Call;
use super::abi::uverbs::{RegMr, RegMrResp, ReregMr, ReregMrResp};
use super::async_event::Reported;
use super::attrs::{Attrs, CONSTANT, Carries, FLAGS, Spec, room};
use super::errno::{EINVAL, EOPNOTSUPP};
use super::mapping::Mapping;
use super::memlock::{Memlock, Pinned};
use super::pd::Pd;
use super::udata::Request;
use crate::commands::objects::{Id, Kind};
use crate::objects::{Mkey, MkeyAttr, Result};

/// A memory region.
#[derive(Debug)]
pub struct Mr {
    /// Its key at the device.
    pub mkey: Mkey,
    attr: MkeyAttr,
    pd: u32,
    memory: Memory,
}

/// Parts of a memory region that keep its memory.
#[derive(Debug, Default)]
pub struct Memory {
    /// Pages of the program.
    pub _pinned: Option<Pinned>,
    /// Mapping of a dma-buf.
    pub mapping: Option<Mapping>,
    /// Handle of the device memory.
    pub dm: Option<u32>,
}

impl Mr {
    /// Returns its length in bytes.
    pub fn length(&self) -> u64 {
        self.attr.length
    }

    /// Returns the handle of its domain.
    pub fn domain(&self) -> u32 {
        self.pd
    }
}

const PAGE_MASK: u64 = 4095;

/// `IBV_ACCESS_*`.
pub mod access {
    pub const LOCAL_WRITE: u32 = 1 << 0;
    pub const REMOTE_WRITE: u32 = 1 << 1;
    pub const REMOTE_READ: u32 = 1 << 2;
    pub const REMOTE_ATOMIC: u32 = 1 << 3;
    pub const MW_BIND: u32 = 1 << 4;
    pub const ZERO_BASED: u32 = 1 << 5;
    pub const ON_DEMAND: u32 = 1 << 6;
    pub const FLUSH_GLOBAL: u32 = 1 << 8;
    pub const FLUSH_PERSISTENT: u32 = 1 << 9;
    pub const RELAXED_ORDERING: u32 = 1 << 20;
    pub const OPTIONAL: u32 = 0x3ff0_0000;

    /// Access flags that the core knows.
    pub const KNOWN: u32 = ((FLUSH_PERSISTENT << 1) - 1) | OPTIONAL;
    /// Rights with which the device writes.
    pub const WRITING: u32 = LOCAL_WRITE | REMOTE_WRITE | REMOTE_ATOMIC | MW_BIND;
}

/// Checks access flags as the core does for each kind of registration.
pub fn check_access(flags: u32) -> Result<()> {
    let remote = flags & (access::REMOTE_WRITE | access::REMOTE_ATOMIC) != 0;
    if remote && flags & access::LOCAL_WRITE == 0 {
        return Err(EINVAL);
    }
    if flags & !access::KNOWN != 0 {
        return Err(EINVAL);
    }
    if flags & (access::ON_DEMAND | access::FLUSH_GLOBAL | access::FLUSH_PERSISTENT) != 0 {
        return Err(EOPNOTSUPP);
    }
    Ok(())
}

/// Pins the memory as a registration does.
fn pin(memlock: &Memlock, start: u64, length: u64, flags: u32) -> Result<Pinned> {
    let end = start.checked_add(length).and_then(|end| end.checked_add(PAGE_MASK));
    end.ok_or(EINVAL)?;
    // An empty range at the start of a page covers no page.
    if length == 0 && start & PAGE_MASK == 0 {
        return Err(EINVAL);
    }
    memlock.pin(start, length, flags & access::WRITING != 0)
}

/// Runs REG_MR.
pub fn write_register(call: &mut Call, request: &Request) -> Result<()> {
    call.context()?;
    let core: RegMr = request.core.input.request()?;
    if (core.start ^ core.hca_va) & PAGE_MASK != 0 {
        return Err(EINVAL);
    }
    check_access(core.access_flags)?;
    call.get::<Pd>(core.pd_handle)?;
    let pinned = pin(&call.core.memlock, core.start, core.length, core.access_flags)?;
    let attr = MkeyAttr {
        pd: call.get::<Pd>(core.pd_handle)?.pdn,
        va: core.start,
        iova: core.hca_va,
        length: core.length,
        access: core.access_flags,
    };
    let memory = Memory { _pinned: Some(pinned), ..Memory::default() };
    let (mr_handle, mkey) = call.add_mr(core.pd_handle, attr, memory)?;
    let answer = RegMrResp { mr_handle, lkey: mkey.0, rkey: mkey.0 };
    let answered = request.core.output.respond(&answer);
    call.or_destroy(mr_handle, answered)
}

const REREG_TRANSLATION: u32 = 1;
const REREG_PD: u32 = 2;
const REREG_ACCESS: u32 = 4;

/// REREG_MR: changes the memory, the domain or the access of a key.
pub fn write_reregister(call: &mut Call, request: &Request) -> Result<()> {
    let core: ReregMr = request.core.input.request()?;
    if core.flags == 0 {
        return Err(EINVAL);
    }
    if core.flags & !(REREG_TRANSLATION | REREG_PD | REREG_ACCESS) != 0 {
        return Err(EOPNOTSUPP);
    }
    let translate = core.flags & REREG_TRANSLATION != 0;
    if translate && (core.start ^ core.hca_va) & PAGE_MASK != 0 {
        return Err(EINVAL);
    }
    let (mkey, mut attr, old_pd, is_mapping) = {
        let mr = call.get::<Mr>(core.mr_handle)?;
        if mr.memory.dm.is_some() {
            return Err(EINVAL);
        }
        (mr.mkey, mr.attr, mr.pd, mr.memory.mapping.is_some())
    };
    if core.flags & REREG_ACCESS != 0 {
        check_access(core.access_flags)?;
        attr.access = core.access_flags;
    }
    let mut pd = old_pd;
    if core.flags & REREG_PD != 0 {
        attr.pd = call.get::<Pd>(core.pd_handle)?.pdn;
        pd = core.pd_handle;
    }
    if translate {
        (attr.va, attr.iova, attr.length) = (core.start, core.hca_va, core.length);
    }
    // A dma-buf keeps its memory, or makes place for memory of the program.
    let keeps = is_mapping && !translate;
    let memlock = &call.core.memlock;
    let pinned = (!keeps).then(|| pin(memlock, attr.va, attr.length, attr.access)).transpose()?;
    call.nic().modify_mkey(mkey, attr)?;
    let uses = call.ids(&[pd]);
    call.core.commands.objects.set_uses(Id(Kind::Mkey, mkey.0 >> 8), uses);
    let mr = call.get_mut::<Mr>(core.mr_handle)?;
    (mr.attr, mr.pd) = (attr, pd);
    if !keeps {
        mr.memory = Memory { _pinned: pinned, ..Memory::default() };
    }
    request.core.output.respond(&ReregMrResp { lkey: mkey.0, rkey: mkey.0 })
}

impl Call<'_> {
    /// Makes a key for memory, in a domain; returns handle and key.
    pub(super) fn add_mr(&mut self, pd: u32, attr: MkeyAttr, memory: Memory) -> Result<(u32, Mkey)> {
        self.admit(super::MR)?;
        let mkey = self.nic().create_mkey(attr)?;
        let uses: Vec<u32> = [pd].into_iter().chain(memory.dm).collect();
        Ok((self.enter(Id(Kind::Mkey, mkey.0 >> 8), &uses, Mr { mkey, attr, pd, memory }), mkey))
    }

    pub(super) fn destroy_mr(&mut self, handle: u32) -> Result<Reported> {
        let mkey = self.get::<Mr>(handle)?.mkey;
        self.nic().destroy_mkey(mkey)?;
        Ok(Reported::default())
    }
}

const HANDLE: u16 = 0;
const RESP_LKEY: u16 = 1;
const RESP_RKEY: u16 = 2;
const RESP_LENGTH: u16 = 3;
const RESP_IOVA: u16 = 4;

/// Attributes of QUERY_MR.
pub const QUERY: &[Spec] = &[
    Spec::needs(HANDLE, Carries::Handle),
    Spec::needs(RESP_LKEY, room(4)),
    Spec::needs(RESP_RKEY, room(4)),
    Spec::needs(RESP_LENGTH, room(8)),
    Spec::takes(RESP_IOVA, room(8)),
];

/// Runs QUERY_MR, for a program that imports the region.
pub fn query(call: &mut Call, attrs: &Attrs) -> Result<()> {
    let mr = call.get::<Mr>(attrs.handle(HANDLE)?)?;
    attrs.put(RESP_LKEY, &mr.mkey.0)?;
    attrs.put(RESP_RKEY, &mr.mkey.0)?;
    attrs.put(RESP_LENGTH, &mr.attr.length)?;
    attrs.put(RESP_IOVA, &mr.attr.iova)
}

/// Attributes of advice about pages: domain, advice, flags and SGEs.
pub const ADVISE: &[Spec] = &[
    Spec::needs(0, Carries::Handle),
    Spec::needs(1, CONSTANT),
    Spec::needs(2, FLAGS),
    Spec::needs(3, Carries::In(16, u16::MAX)),
];

/// Refuses advice: the device has no pages on demand.
pub fn advise(call: &mut Call, attrs: &Attrs) -> Result<()> {
    call.get::<Pd>(attrs.handle(0)?)?;
    Err(EOPNOTSUPP)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remote_rights_to_write_need_the_local_one() {
        assert_eq!(check_access(access::REMOTE_WRITE), Err(EINVAL));
        assert_eq!(check_access(access::REMOTE_ATOMIC), Err(EINVAL));
        assert_eq!(check_access(access::REMOTE_WRITE | access::LOCAL_WRITE), Ok(()));
        assert_eq!(check_access(0), Ok(()));
        // Relaxed ordering and its reserved neighbours may be ignored.
        assert_eq!(check_access(1 << 20 | 1 << 29), Ok(()));
        assert_eq!(check_access(1 << 30), Err(EINVAL));
        assert_eq!(check_access(access::ON_DEMAND), Err(EOPNOTSUPP));
    }

    #[test]
    fn ranges_that_wrap_or_hold_no_page_are_invalid() {
        let pin = |start, length| pin(&Memlock::new(true), start, length, 0).err();
        assert_eq!(pin(u64::MAX - 1, 4), Some(EINVAL));
        assert_eq!(pin(0x1000, 0), Some(EINVAL));
        assert_eq!(pin(0x1000, 1), Some(super::super::errno::EFAULT));
    }
}
