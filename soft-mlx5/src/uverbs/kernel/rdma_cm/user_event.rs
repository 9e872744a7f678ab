//! Events that a program sends to itself.

use super::commands::Request;
use super::events::{Param, Queued};
use super::{Call, event};
use crate::objects::Result;
use crate::uverbs::kernel::abi::rdma_cm::{EventHead, WriteEvent};
use crate::uverbs::kernel::errno::EINVAL;

impl Call<'_> {
    /// Queues an event of the program or of librdmacm: `rdma_resolve_addrinfo` tells its own thread so that the address
    /// is known.
    pub(super) fn write_event(&mut self, request: &Request) -> Result<()> {
        let wanted: WriteEvent = request.input.get()?;
        if !matches!(wanted.event, event::USER | event::INTERNAL) {
            return Err(EINVAL);
        }
        let uid = self.id(wanted.id)?.uid;
        let head = EventHead { uid, id: wanted.id, event: wanted.event, status: wanted.status };
        let param = Param::Argument(wanted.arg);
        self.core.rdma_cm.push(Queued { of: wanted.id, group: None, fresh: None, head, param });
        Ok(())
    }
}
