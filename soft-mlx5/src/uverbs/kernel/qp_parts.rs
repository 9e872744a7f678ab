//! Queue pairs in the registry of the firmware: one entry, or, for frames, entries of the queues, the TIS and the TIR.

use mlx5_wire::firmware::transport::CreateTis;

use super::Call;
use super::abi::mlx5::CreateQpResp;
use super::errno::ENOMEM;
use crate::commands::frames::{rq_context, sq_context, tir_context};
use crate::commands::objects::{Entry, Id, Kind};
use crate::objects::{DcAttr, QpAttr, Qpn, Result, Service};

impl Call<'_> {
    /// Enters a queue pair that uses these objects; returns its places. If there is no room, the queue pair is
    /// destroyed.
    pub(super) fn enter_parts(&mut self, qpn: Qpn, attr: &QpAttr, uses: Vec<Id>) -> Result<Vec<Id>> {
        let uid = self.uid();
        let entry = |uses, context| Entry { uid, uses, context, ..Entry::default() };
        let objects = &mut self.core.commands.objects;
        if attr.service != Service::Raw {
            let kind = if matches!(attr.dc, DcAttr::Target { .. }) { Kind::Dct } else { Kind::Qp };
            objects.insert(Id(kind, qpn.0), entry(uses, attr.context()));
            return Ok(vec![Id(kind, qpn.0)]);
        }
        let domain = Id(Kind::TransportDomain, attr.raw.domain);
        let mut parts = Vec::new();
        if attr.sq.count > 0 {
            let tis = CreateTis { transport_domain: domain.1, ..CreateTis::ZERO }.to_bytes();
            let Ok(tisn) = objects.insert_new(Kind::Tis, entry(vec![domain], tis.to_vec())) else {
                self.nic().destroy_qp(qpn)?;
                return Err(ENOMEM);
            };
            objects.insert(Id(Kind::Sq, qpn.0), entry(uses.clone(), sq_context(attr, tisn)));
            parts = vec![Id(Kind::Sq, qpn.0), Id(Kind::Tis, tisn)];
        }
        if let Some((wqn, tirn)) = self.core.nic.receiver_of(qpn) {
            let objects = &mut self.core.commands.objects;
            let queue = Id(Kind::Rq, wqn.0);
            objects.insert(queue, entry(uses, rq_context(&attr.receive_side())));
            let target = tir_context(&attr.target(wqn), queue);
            objects.insert(Id(Kind::Tir, tirn.0), entry(vec![domain], target));
            parts.extend([queue, Id(Kind::Tir, tirn.0)]);
        }
        Ok(parts)
    }

    /// Returns the numbers of the parts as programs with DEVX learn them.
    pub(super) fn answer_parts(&mut self, parts: &[Id]) -> CreateQpResp {
        let mut answer = CreateQpResp::default();
        if self.uid() == 0 {
            return answer;
        }
        for Id(kind, number) in parts {
            let (bit, place) = match kind {
                Kind::Tir => (1 << 0, &mut answer.tirn),
                Kind::Tis => (1 << 1, &mut answer.tisn),
                Kind::Rq => (1 << 2, &mut answer.rqn),
                Kind::Sq => (1 << 3, &mut answer.sqn),
                _ => continue,
            };
            *place = *number;
            answer.comp_mask |= bit;
        }
        answer
    }
}
