//! A request as it is posted to both twins.

use mlx5_ring::sge::Sge;
use mlx5_ring::sq::{Flags, Immediate, Payload, PostError, Posting, Remote};
use mlx5_wire::datagram::DatagramSegment;
use rdma_core_sys as sys;

use super::plan::Kind;
use crate::verbs::QKEY;

/// Everything of a request that is not the queue's.
#[derive(Clone)]
pub struct Request {
    pub id: u64,
    pub kind: Kind,
    pub sges: Vec<sys::ibv_sge>,
    pub inline: bool,
    pub remote: (u64, u32),
    pub signaled: bool,
    pub solicited: bool,
    pub fence: bool,
}

/// Where datagrams go.
pub struct Destination {
    pub ah: *mut sys::ibv_ah,
    pub qpn: u32,
}

impl Request {
    /// Basic blocks of its WQE.
    pub fn blocks(&self, datagram: bool) -> u32 {
        let head = match self.kind {
            Kind::Send | Kind::SendImmediate(_) | Kind::SendInvalidate(_) if datagram => 4,
            Kind::Send | Kind::SendImmediate(_) | Kind::SendInvalidate(_) => 1,
            Kind::Write | Kind::WriteImmediate(_) | Kind::Read => 2,
            Kind::FetchAdd(_) | Kind::CompareSwap(..) => 3,
        };
        let bytes: u32 = self.sges.iter().map(|sge| sge.length).sum();
        let entries = self.sges.iter().filter(|sge| sge.length > 0).count() as u32;
        let body = match bytes {
            0 => 0,
            bytes if self.inline => (4 + bytes).div_ceil(16),
            _ => entries,
        };
        (head + body).div_ceil(4)
    }

    /// Its opcode, as a completion of libibverbs names it.
    pub fn wc_opcode(&self) -> sys::ibv_wc_opcode {
        match self.kind {
            Kind::Send | Kind::SendImmediate(_) | Kind::SendInvalidate(_) => sys::IBV_WC_SEND,
            Kind::Write | Kind::WriteImmediate(_) => sys::IBV_WC_RDMA_WRITE,
            Kind::Read => sys::IBV_WC_RDMA_READ,
            Kind::FetchAdd(_) => sys::IBV_WC_FETCH_ADD,
            Kind::CompareSwap(..) => sys::IBV_WC_COMP_SWAP,
        }
    }

    /// Its flags, as libibverbs has them.
    pub fn flags(&self) -> u32 {
        [
            (self.signaled, sys::IBV_SEND_SIGNALED),
            (self.solicited, sys::IBV_SEND_SOLICITED),
            (self.fence, sys::IBV_SEND_FENCE),
            (self.inline, sys::IBV_SEND_INLINE),
        ]
        .into_iter()
        .fold(0, |flags, (set, flag)| if set { flags | flag } else { flags })
    }

    /// The work request of libibverbs.
    pub fn wr(&mut self, to: Option<&Destination>) -> sys::ibv_send_wr {
        let mut wr = sys::ibv_send_wr {
            wr_id: self.id,
            sg_list: self.sges.as_mut_ptr(),
            num_sge: self.sges.len() as i32,
            ..Default::default()
        };
        wr.send_flags = self.flags();
        let (addr, rkey) = self.remote;
        (wr.wr.rdma.remote_addr, wr.wr.rdma.rkey) = (addr, rkey);
        let mut immediate = |value: u32| wr.__bindgen_anon_1.imm_data = value.to_be();
        wr.opcode = match self.kind {
            Kind::Send => sys::IBV_WR_SEND,
            Kind::SendImmediate(value) => {
                immediate(value);
                sys::IBV_WR_SEND_WITH_IMM
            }
            Kind::SendInvalidate(key) => {
                wr.__bindgen_anon_1.invalidate_rkey = key;
                sys::IBV_WR_SEND_WITH_INV
            }
            Kind::Write => sys::IBV_WR_RDMA_WRITE,
            Kind::WriteImmediate(value) => {
                immediate(value);
                sys::IBV_WR_RDMA_WRITE_WITH_IMM
            }
            Kind::Read => sys::IBV_WR_RDMA_READ,
            Kind::FetchAdd(add) => {
                wr.wr.atomic = atomic(self.remote, add, 0);
                sys::IBV_WR_ATOMIC_FETCH_AND_ADD
            }
            Kind::CompareSwap(compare, swap) => {
                wr.wr.atomic = atomic(self.remote, compare, swap);
                sys::IBV_WR_ATOMIC_CMP_AND_SWP
            }
        };
        if let Some(Destination { ah, qpn }) = to {
            (wr.wr.ud.ah, wr.wr.ud.remote_qpn, wr.wr.ud.remote_qkey) = (*ah, *qpn, QKEY);
        }
        wr
    }

    /// Posts it to the ring.
    ///
    /// # Safety
    /// *memory* and *ready* of [`mlx5_ring::sq`].
    pub unsafe fn post(&self, posting: &mut Posting<'_, u64>, to: Option<&DatagramSegment>) -> Result<(), PostError> {
        let sges: Vec<_> =
            self.sges.iter().map(|sge| Sge { addr: sge.addr, length: sge.length, lkey: sge.lkey }).collect();
        let pieces: Vec<&[u8]> = if self.inline {
            // SAFETY: the memory is mapped, and not written now.
            sges.iter().map(|sge| unsafe { bytes(sge) }).collect()
        } else {
            Vec::new()
        };
        let payload = if self.inline { Payload::inline(&pieces) } else { Payload::gather(&sges) };
        let mut flags = Flags::NONE;
        for (set, flag) in
            [(self.signaled, Flags::SIGNALED), (self.solicited, Flags::SOLICITED), (self.fence, Flags::FENCE)]
        {
            flags = if set { flags | flag } else { flags };
        }
        let remote = Remote { addr: self.remote.0, rkey: self.remote.1 };
        // SAFETY: *memory* and *ready* of [`mlx5_ring::sq`].
        unsafe {
            match self.kind {
                Kind::Send | Kind::SendImmediate(_) if to.is_some() => {
                    let immediate = match self.kind {
                        Kind::SendImmediate(value) => Some(value),
                        _ => None,
                    };
                    posting.send_to(to.expect("checked"), payload, immediate, flags, self.id)
                }
                Kind::Send => posting.send(payload, Immediate::None, flags, self.id),
                Kind::SendImmediate(value) => posting.send(payload, Immediate::Data(value), flags, self.id),
                Kind::SendInvalidate(key) => posting.send(payload, Immediate::Invalidate(key), flags, self.id),
                Kind::Write => posting.write(remote, payload, None, flags, self.id),
                Kind::WriteImmediate(value) => posting.write(remote, payload, Some(value), flags, self.id),
                Kind::Read => posting.read(remote, &sges, flags, self.id),
                Kind::FetchAdd(add) => posting.fetch_add(remote, add, sges[0], flags, self.id),
                Kind::CompareSwap(compare, swap) => {
                    posting.compare_swap(remote, [compare, swap], sges[0], flags, self.id)
                }
            }
        }
    }
}

fn atomic(
    (remote_addr, rkey): (u64, u32),
    compare_add: u64,
    swap: u64,
) -> sys::ibv_send_wr__bindgen_ty_2__bindgen_ty_2 {
    sys::ibv_send_wr__bindgen_ty_2__bindgen_ty_2 { remote_addr, compare_add, swap, rkey }
}

/// # Safety
/// The memory is mapped and not written while the slice is used.
unsafe fn bytes(sge: &Sge) -> &[u8] {
    let start = std::ptr::with_exposed_provenance(sge.addr as usize);
    // SAFETY: the memory is mapped and not written while the slice is used.
    unsafe { std::slice::from_raw_parts(start, sge.length as usize) }
}
