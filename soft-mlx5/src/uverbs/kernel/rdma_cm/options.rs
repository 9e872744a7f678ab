//! Options of an identifier.

use super::commands::Request;
use super::identifier::State;
use super::{Call, event};
use crate::objects::Result;
use crate::uverbs::kernel::abi::Abi;
use crate::uverbs::kernel::abi::rdma_cm::{PathData, SetOption};
use crate::uverbs::kernel::errno::{EINVAL, ENOSYS};
use crate::uverbs::kernel::udata::Input;

const LEVEL_ID: u32 = 0;
const LEVEL_IB: u32 = 1;

const TOS: u32 = 0;
const REUSEADDR: u32 = 1;
const AFONLY: u32 = 2;
const ACK_TIMEOUT: u32 = 3;
const IB_PATH: u32 = 1;

/// Bits of a path record that make it the path of both directions.
const PRIMARY: u32 = 2 | 8 | 32;
// Value of an option at most; the kernel's bound is the same.
const MAX_VALUE: usize = 4096;

impl Call<'_> {
    pub(super) fn set_option(&mut self, request: &Request) -> Result<()> {
        let wanted: SetOption = request.input.get()?;
        let len = wanted.optlen as usize;
        if len > MAX_VALUE {
            return Err(EINVAL);
        }
        self.id(wanted.id)?;
        let value = Input::user(wanted.optval, len).bytes(0, len)?;
        match wanted.level {
            LEVEL_ID => self.set_id_option(wanted.id, wanted.optname, &value),
            LEVEL_IB if wanted.optname == IB_PATH => self.set_path(wanted.id, &value),
            _ => Err(ENOSYS),
        }
    }

    fn set_id_option(&mut self, number: u32, name: u32, value: &[u8]) -> Result<()> {
        let byte = || if value.len() == 1 { Ok(value[0]) } else { Err(EINVAL) };
        let truth = || if value.len() == 4 { Ok(u32::get(value) != 0) } else { Err(EINVAL) };
        let id = self.id(number)?;
        match name {
            TOS => id.tos = byte()?,
            REUSEADDR => {
                let reuse = truth()?;
                if id.state != State::Idle && !(reuse && id.state != State::Listen) {
                    return Err(EINVAL);
                }
                id.reuse = reuse;
            }
            AFONLY => {
                if !matches!(id.state, State::Idle | State::Bound) {
                    return Err(EINVAL);
                }
                id.af_only = truth()?;
            }
            ACK_TIMEOUT => {
                let timeout = byte()?;
                if timeout > 31 {
                    return Err(EINVAL);
                }
                id.ack_timeout = Some(timeout);
            }
            _ => return Err(ENOSYS),
        }
        Ok(())
    }

    // A program that has asked a subnet administrator itself gives the path: its GIDs lead to the same port.
    fn set_path(&mut self, number: u32, value: &[u8]) -> Result<()> {
        if value.is_empty() || value.len() % PathData::SIZE != 0 {
            return Err(EINVAL);
        }
        let mut paths = value.chunks(PathData::SIZE).map(PathData::get);
        paths.find(|path| path.flags & PRIMARY == PRIMARY).ok_or(EINVAL)?;
        let id = self.id(number)?;
        if id.state != State::AddrResolved {
            return Err(EINVAL);
        }
        id.state = State::RouteResolved;
        self.core.raise(number, event::ROUTE_RESOLVED, 0);
        Ok(())
    }
}
