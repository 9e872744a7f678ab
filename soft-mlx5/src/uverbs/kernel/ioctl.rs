//! The ioctl form of a command.

use super::abi::Abi;
use super::abi::uverbs::{IoctlAttr, IoctlHeader};
use super::attrs::{Attrs, UHW_OUT};
use super::errno::{EINVAL, EPROTONOSUPPORT};
use super::{Call, methods, user};
use crate::objects::Result;

/// `RDMA_VERBS_IOCTL`.
pub const REQUEST: u32 = 0xc018_1b01;

const DRIVER_MLX5: u32 = 1;
const PAGE: u16 = 4096;

/// Runs the command whose header is at `argument`.
pub fn run(call: &mut Call, argument: u64) -> Result<()> {
    let mut header = [0; IoctlHeader::SIZE];
    user::read(argument, &mut header)?;
    let header = IoctlHeader::get(&header);
    let attrs_len = usize::from(header.num_attrs) * IoctlAttr::SIZE;
    let fits = usize::from(header.length) == IoctlHeader::SIZE + attrs_len;
    if header.length > PAGE || !fits {
        return Err(EINVAL);
    }
    if header.reserved1 != 0 || header.reserved2 != 0 {
        return Err(EPROTONOSUPPORT);
    }
    if header.driver_id != DRIVER_MLX5 {
        return Err(EINVAL);
    }
    let method = methods::find(header.object, header.method).ok_or(EPROTONOSUPPORT)?;
    call.check_present(methods::outlive_removal(header.object, header.method))?;

    let first = argument + IoctlHeader::SIZE as u64;
    let mut bytes = vec![0; attrs_len];
    user::read(first, &mut bytes)?;
    let passed = bytes
        .chunks_exact(IoctlAttr::SIZE)
        .enumerate()
        .map(|(index, bytes)| (IoctlAttr::get(bytes), first + (index * IoctlAttr::SIZE) as u64));
    let attrs = Attrs::check(passed.collect(), method.attrs)?;
    (method.run)(call, &attrs)?;
    // The kernel reports the driver's response as written without tracking it.
    attrs.mark_written(UHW_OUT)
}
