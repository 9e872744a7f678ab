//! A request as it is posted to both twins.

use mlx5_ring::sge::Sge;
use mlx5_ring::sq::{Flags, Immediate, KeyChange, Payload, PostError, Posting, Remote, Window};
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
    /// The change of a key that it makes.
    pub change: Option<Change>,
}

/// A change of the key of a window.
#[derive(Clone, Copy)]
pub struct Change {
    /// The key before, and after.
    pub keys: [u32; 2],
    /// Bytes of the region with this key; none if the key is invalidated or the window unbound.
    pub bytes: Option<(u64, u32, u32)>,
    /// `IBV_ACCESS_...`
    pub access: u32,
}

/// Windows and a region of a twin.
#[derive(Clone, Copy)]
pub struct Windows {
    /// Windows of types 1 and 2.
    pub windows: [*mut sys::ibv_mw; 2],
    pub region: *mut sys::ibv_mr,
}

impl Change {
    /// Returns what is bound, of the objects of a twin.
    pub fn info(&self, of: &Windows) -> sys::ibv_mw_bind_info {
        let (addr, len, _) = self.bytes.unwrap_or_default();
        sys::ibv_mw_bind_info { mr: of.region, addr, length: len.into(), mw_access_flags: self.access }
    }

    fn of_ring(&self, kind: Kind, qpn: u32) -> KeyChange {
        let ([key, rkey], has) = (self.keys, |flag| self.access & flag != 0);
        let Some((addr, len, lkey)) = self.bytes else {
            return if kind == Kind::Window {
                KeyChange::invalidate(key, 0)
            } else {
                KeyChange::unbind_type_1(key, rkey as u8)
            };
        };
        let remote = Remote { addr, rkey };
        let (read, write) = (has(sys::IBV_ACCESS_REMOTE_READ), has(sys::IBV_ACCESS_REMOTE_WRITE));
        let window = Window { key, remote, len, lkey, read, write, atomic: has(sys::IBV_ACCESS_REMOTE_ATOMIC) };
        let change = if kind == Kind::Window { KeyChange::bind(&window, qpn) } else { KeyChange::bind_type_1(&window) };
        let change = if has(sys::IBV_ACCESS_ZERO_BASED) { change.zero_based() } else { change };
        if has(sys::IBV_ACCESS_LOCAL_WRITE) { change.local_write() } else { change }
    }
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
            Kind::Window | Kind::WindowType1 | Kind::UnbindType1 => {
                return if self.change.is_some_and(|change| change.bytes.is_some()) { 3 } else { 2 };
            }
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
            Kind::Window if self.change.is_some_and(|change| change.bytes.is_none()) => sys::IBV_WC_LOCAL_INV,
            Kind::Window | Kind::WindowType1 | Kind::UnbindType1 => sys::IBV_WC_BIND_MW,
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
    pub fn wr(&mut self, to: Option<&Destination>, windows: Option<&Windows>) -> sys::ibv_send_wr {
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
            Kind::Window | Kind::WindowType1 | Kind::UnbindType1 => {
                let (change, windows) = (self.change.expect("a change"), windows.expect("windows"));
                if self.wc_opcode() == sys::IBV_WC_LOCAL_INV {
                    wr.__bindgen_anon_1.invalidate_rkey = change.keys[0];
                    sys::IBV_WR_LOCAL_INV
                } else {
                    let mw = windows.windows[usize::from(self.kind == Kind::Window)];
                    let bind_info = change.info(windows);
                    let bind = sys::ibv_send_wr__bindgen_ty_4__bindgen_ty_1 { mw, rkey: change.keys[1], bind_info };
                    wr.__bindgen_anon_2.bind_mw = bind;
                    sys::IBV_WR_BIND_MW
                }
            }
        };
        if let Some(Destination { ah, qpn }) = to {
            (wr.wr.ud.ah, wr.wr.ud.remote_qpn, wr.wr.ud.remote_qkey) = (*ah, *qpn, QKEY);
        }
        wr
    }

    /// Posts it to the ring of queue pair `qpn`; `is_fenced` if the request before it changes a key.
    ///
    /// # Safety
    /// *memory* and *ready* of [`mlx5_ring::sq`].
    pub unsafe fn post(
        &self,
        posting: &mut Posting<'_, u64>,
        to: Option<&DatagramSegment>,
        qpn: u32,
        is_fenced: bool,
    ) -> Result<(), PostError> {
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
        let flags = flags.behind(is_fenced);
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
                Kind::Window | Kind::WindowType1 | Kind::UnbindType1 => {
                    posting.change(&self.change.expect("a change").of_ring(self.kind, qpn), flags, self.id)
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
