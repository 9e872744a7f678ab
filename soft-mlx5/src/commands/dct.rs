//! Targets of dynamic connections.

use mlx5_wire::firmware::dct::{CreateDct, DctContext, QueryDctReply};

use super::capabilities::PKEYS;
use super::objects::{Entry, Id, Kind};
use super::opcodes::{Command, Result, answer, created};
use super::refusal::Refusal;
use super::{Execution, limits};
use crate::engine::counting::Counted;
use crate::fabric::LinkLayer;
use crate::objects::mkey::{REMOTE_ATOMIC, REMOTE_READ, REMOTE_WRITE};
use crate::objects::{AddressVector, Cqn, Grh, Pdn, QpAttr, QpModify, QpState, Qpn, Srqn};

/// States of a target.
const DRAINED: u8 = 2;

fn check(context: &DctContext, layer: LinkLayer) -> Result {
    let gids = match layer {
        LinkLayer::InfiniBand => limits::GIDS_INFINIBAND,
        LinkLayer::Ethernet => limits::GIDS_ETHERNET,
    };
    if context.port > 1 {
        return Err(Refusal::PORT);
    }
    if context.pkey_index >= PKEYS {
        return Err(Refusal::PKEY_INDEX);
    }
    if u32::from(context.my_addr_index) >= gids {
        return Err(Refusal::GID_INDEX);
    }
    if (1..=5).contains(&context.mtu) { Ok(()) } else { Err(Refusal::MTU) }
}

impl Execution<'_> {
    pub(super) fn create_dct(&mut self, command: &Command, output: &mut [u8]) -> Result {
        let (CreateDct { context, .. }, uid) = (command.parse()?, command.uid());
        check(&context, self.state.layer)?;
        let used = [Id(Kind::Cq, context.cqn), Id(Kind::Rmp, context.srqn_xrqn), Id(Kind::Pd, context.pd)].into_iter();
        let uses = used.map(|id| self.state.objects.check_use(id, uid)).collect::<Result<Vec<_>>>()?;
        let attr = QpAttr {
            user_index: context.user_index,
            scatter_to_cqe_rq: context.cs_res != 0,
            ..QpAttr::of_target(Pdn(context.pd), Cqn(context.cqn), Srqn(context.srqn_xrqn), context.dc_access_key)
        };
        self.check_counters(context.counter_set_id, uid)?;
        let target = self.nic.create_qp(attr)?;
        self.count_in(Counted::Qp(target.0), context.counter_set_id, uid)?;
        let rights = [(context.rwe, REMOTE_WRITE), (context.rre, REMOTE_READ), (context.rae, REMOTE_ATOMIC)];
        let change = QpModify {
            state: Some(QpState::Rtr),
            access: Some(rights.iter().filter(|(given, _)| *given).map(|(_, right)| right).sum()),
            path_mtu: Some(128 << context.mtu),
            min_rnr_timer: Some(context.min_rnr_nak),
            av: Some(AddressVector {
                grh: Some(Grh {
                    dgid: [0; 16],
                    sgid_index: context.my_addr_index,
                    flow_label: context.flow_label,
                    hop_limit: context.hop_limit,
                    traffic_class: context.tclass,
                }),
                ..AddressVector::default()
            }),
            ..QpModify::default()
        };
        self.nic.modify_qp(target, &change)?;
        let context = context.to_bytes().to_vec();
        self.state.objects.insert(Id(Kind::Dct, target.0), Entry { uid, uses, context, ..Entry::default() });
        created(output, target.0)
    }

    fn target(&self, command: &Command) -> Result<Qpn> {
        let number = command.number()?;
        self.state.objects.find(Id(Kind::Dct, number), command.uid())?;
        Ok(Qpn(number))
    }

    pub(super) fn drain_dct(&mut self, command: &Command, _: &mut [u8]) -> Result {
        let target = self.target(command)?;
        Ok(self.nic.drain_target(target)?)
    }

    pub(super) fn arm_dct(&mut self, command: &Command, _: &mut [u8]) -> Result {
        let target = self.target(command)?;
        Ok(self.nic.arm_key_violation(target)?)
    }

    pub(super) fn query_dct(&mut self, command: &Command, output: &mut [u8]) -> Result {
        let Qpn(number) = self.target(command)?;
        let entry = self.state.objects.find(Id(Kind::Dct, number), command.uid())?;
        let mut context = DctContext::from_prefix(&entry.context).ok_or(Refusal::NO_OBJECT)?;
        let status = self.nic.target_status(Qpn(number))?;
        context.dc_access_key_violation_count = status.key_violations;
        if status.drained {
            context.state = DRAINED;
        }
        answer(output, QueryDctReply { context })
    }
}
