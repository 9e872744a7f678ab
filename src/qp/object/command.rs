//! Queue pairs that commands of the firmware make, on an SRQ that a command made.

use std::ptr::NonNull;

use mlx5_ring::sq;
use mlx5_wire::ctrl::SEND_WQE_BB;
use mlx5_wire::firmware::command::{Opcode, Request};
use mlx5_wire::firmware::qp::{AddressPath, CreateQp, ModifyQp, QpContext, QueryQpReply, rq_type, service, state};
use rdma_core_sys as sys;

use crate::attributes::LinkLayer;
use crate::devx::{LONG, Object, QueueMemory, Xrq};
use crate::error::{Error, Result};
use crate::mlx5;
use crate::pd::ProtectionDomain;
use crate::qp::ah::Ah;
use crate::qp::config::QpConfig;

/// Path migration is not used (`MLX5_QP_PM_MIGRATED`).
const MIGRATED: u8 = 3;

/// A queue pair that a command made.
pub(super) struct CommandQp {
    object: Object,
    /// Basic blocks of the send queue.
    blocks: u32,
}

impl CommandQp {
    /// Makes an RC queue pair in the RESET state, which receives from `srq`.
    pub(super) fn create(
        config: &QpConfig,
        srq: &Xrq,
        send_cq: *mut sys::ibv_cq,
        recv_cq: *mut sys::ibv_cq,
    ) -> Result<Self> {
        const RENDEZVOUS: u8 = 1;
        const DEFAULT_TIMESTAMPS: u8 = 1;
        const NO_INDEX: u32 = 0xff_ffff;
        let firmware = srq.firmware();
        let context = firmware.context();
        let number = |cq| mlx5::cqn(firmware.mlx5dv(), cq).map_err(|error| context.not_direct(error));
        let blocks = if config.device_sends { 0 } else { config.send_blocks() };
        Error::check_range("basic blocks of the send queue", blocks.into(), 0, 1 << 15)?;
        let memory = QueueMemory::new(context, firmware.mlx5dv(), blocks as usize * SEND_WQE_BB)?;
        let (uar_page, _) = firmware.register();
        let create = CreateQp {
            request: Request::new(Opcode::CREATE_QP),
            context: QpContext {
                service: service::RC,
                pm_state: MIGRATED,
                pd: firmware.pdn(),
                // The device reads the data of offers with a send queue of its own.
                offload_type: if config.device_sends { RENDEZVOUS } else { 0 },
                no_sq: config.device_sends,
                log_sq_size: blocks.checked_ilog2().unwrap_or(0) as u8,
                timestamp_format: DEFAULT_TIMESTAMPS,
                uar_page,
                user_index: NO_INDEX,
                cqn_snd: number(send_cq)?,
                cqn_rcv: number(recv_cq)?,
                rq_type: rq_type::SRQ,
                srqn: srq.number(),
                dbr_addr: memory.record_offset(),
                dbr_umem_id: memory.umem_id(),
                ..QpContext::ZERO
            },
            umem_id: memory.umem_id(),
            ..CreateQp::ZERO
        };
        let object = firmware.create(&create.to_bytes(), memory)?;
        firmware.events().forget(object.number())?;
        firmware.events().subscribe(&object)?;
        Ok(Self { object, blocks })
    }

    pub(super) const fn number(&self) -> u32 {
        self.object.number()
    }

    pub(super) const fn object(&self) -> &Object {
        &self.object
    }

    /// Returns where the send queue is.
    pub(super) fn send_queue(&self) -> sq::Layout {
        let (_, register) = self.object.firmware().register();
        let memory = self.object.memory();
        sq::Layout {
            buf: memory.ring(),
            dbrec: memory.record(),
            wqe_cnt: self.blocks,
            stride: SEND_WQE_BB as u32,
            register: register.unwrap_or(NonNull::dangling()),
            // libmlx5 does not return the size of its halves, so nothing is copied to the register.
            register_size: 0,
            qpn: self.number(),
        }
    }

    /// Changes the state with the attributes of `ibv_modify_qp(3)`.
    pub(super) fn modify(&self, pd: &ProtectionDomain, attr: &sys::ibv_qp_attr) -> Result<()> {
        let rights = |context| QpContext {
            rre: attr.qp_access_flags & sys::IBV_ACCESS_REMOTE_READ != 0,
            rwe: attr.qp_access_flags & sys::IBV_ACCESS_REMOTE_WRITE != 0,
            rae: attr.qp_access_flags & sys::IBV_ACCESS_REMOTE_ATOMIC != 0,
            ..context
        };
        let base = QpContext { pm_state: MIGRATED, ..QpContext::ZERO };
        match attr.qp_state {
            sys::IBV_QPS_INIT => {
                const ATOMICS_OF_8_BYTES: u8 = 1;
                let path = AddressPath { port: attr.port_num, pkey_index: attr.pkey_index, ..AddressPath::ZERO };
                self.change(Opcode::RST2INIT_QP, rights(QpContext { path, atomic_mode: ATOMICS_OF_8_BYTES, ..base }))
            }
            sys::IBV_QPS_RTR => {
                const LOG_MAX_MESSAGE: u8 = 30;
                let context = QpContext {
                    mtu: attr.path_mtu as u8,
                    log_msg_max: LOG_MAX_MESSAGE,
                    remote_qpn: attr.dest_qp_num,
                    path: path(pd, attr.ah_attr)?,
                    log_rra_max: log_of_atomics(attr.max_dest_rd_atomic),
                    min_rnr_nak: attr.min_rnr_timer,
                    next_rcv_psn: attr.rq_psn,
                    ..base
                };
                self.change(Opcode::INIT2RTR_QP, context)
            }
            sys::IBV_QPS_RTS => {
                const ACKNOWLEDGE_EACH_256: u8 = 8;
                let context = QpContext {
                    next_send_psn: attr.sq_psn,
                    log_sra_max: log_of_atomics(attr.max_rd_atomic),
                    retry_count: attr.retry_cnt,
                    rnr_retry: attr.rnr_retry,
                    log_ack_req_freq: ACKNOWLEDGE_EACH_256,
                    path: AddressPath { ack_timeout: attr.timeout, ..AddressPath::ZERO },
                    ..base
                };
                self.change(Opcode::RTR2RTS_QP, context)
            }
            sys::IBV_QPS_RESET => self.object.modify_numbered(Opcode::MOVE_QP_TO_RST),
            _ => self.object.modify_numbered(Opcode::MOVE_QP_TO_ERR),
        }
    }

    fn change(&self, opcode: Opcode, context: QpContext) -> Result<()> {
        let modify = ModifyQp { request: Request::new(opcode), qpn: self.number(), optional: 0, context };
        let mut command = [0; LONG];
        command[..ModifyQp::SIZE].copy_from_slice(&modify.to_bytes());
        self.object.modify(&command)
    }

    /// Asks for the state.
    pub(super) fn state(&self) -> Result<sys::ibv_qp_state> {
        let mut answer = [0; QueryQpReply::SIZE];
        self.object.query(Opcode::QUERY_QP, &mut answer)?;
        Ok(match QueryQpReply::from_bytes(&answer).context.state {
            state::RST => sys::IBV_QPS_RESET,
            state::INIT => sys::IBV_QPS_INIT,
            state::RTR => sys::IBV_QPS_RTR,
            state::RTS => sys::IBV_QPS_RTS,
            state::SQER => sys::IBV_QPS_SQE,
            state::SQD => sys::IBV_QPS_SQD,
            _ => sys::IBV_QPS_ERR,
        })
    }

    /// Destroys the queue pair; returns `false` if the firmware refuses.
    pub(super) fn destroy(&mut self) -> bool {
        self.object.destroy()
    }
}

/// Returns log2 of the READs and atomics that can be outstanding, rounded up.
const fn log_of_atomics(count: u8) -> u8 {
    (count as u32).next_power_of_two().ilog2() as u8
}

/// Returns the path to a peer.
fn path(pd: &ProtectionDomain, mut attr: sys::ibv_ah_attr) -> Result<AddressPath> {
    let vector = Ah::create(pd, &mut attr)?.segment()?;
    let ethernet = pd.context().query_port(attr.port_num)?.link_layer == LinkLayer::Ethernet;
    let [m0, m1, m2, m3, m4, m5] = vector.rmac;
    let global = AddressPath {
        src_addr_index: attr.grh.sgid_index,
        hop_limit: vector.hop_limit,
        tclass: vector.tclass,
        flow_label: vector.grh_gid_fl.get() & 0xf_ffff,
        rgid: vector.rgid,
        port: attr.port_num,
        ..AddressPath::ZERO
    };
    Ok(match ethernet {
        true => AddressPath {
            rmac: u64::from_be_bytes([0, 0, m0, m1, m2, m3, m4, m5]),
            // The kernel has computed the source port of UDP, where the LID stands on InfiniBand.
            udp_sport: vector.rlid.get(),
            dscp: vector.tclass >> 2,
            eth_prio: attr.sl & 7,
            ..global
        },
        false => {
            AddressPath { grh: attr.is_global != 0, rlid: attr.dlid, mlid: attr.src_path_bits, sl: attr.sl, ..global }
        }
    })
}
