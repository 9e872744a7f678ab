//! Firmware commands: the driver creates, changes and destroys objects.

use std::io;

use super::Nic;
use super::counting::Counted;
use crate::base::counters::Hardware;
use crate::fabric::address;
use crate::objects::cq::Cq;
use crate::objects::memory::{Space, Spaces};
use crate::objects::mkey::Form;
use crate::objects::qp::Qp;
use crate::objects::srq::Srq;
use crate::objects::tag_list::TagList;
use crate::objects::{
    CqAttr, CqStatus, Cqn, Errno, Event, Mkey, MkeyAttr, Pdn, QpAttr, QpModify, QpStatus, Qpn, Result, Service,
    SrqAttr, SrqKind, Srqn,
};

const ENOMEM: Errno = Errno(libc::ENOMEM);
const EINVAL: Errno = Errno(libc::EINVAL);
const EBUSY: Errno = Errno(libc::EBUSY);

pub(crate) fn errno(error: io::Error) -> Errno {
    Errno(error.raw_os_error().unwrap_or(libc::ENOMEM))
}

impl Nic {
    /// Allocates a protection domain.
    pub fn alloc_pd(&mut self) -> Result<Pdn> {
        self.pds.insert_with(|_| ()).map(Pdn).ok_or(ENOMEM)
    }

    /// Frees a protection domain.
    pub fn dealloc_pd(&mut self, pd: Pdn) -> Result<()> {
        self.pds.remove(pd.0).ok_or(EINVAL)
    }

    /// Registers memory of this process.
    pub fn create_mkey(&mut self, attr: MkeyAttr) -> Result<Mkey> {
        self.core.mkeys.create(attr).ok_or(ENOMEM)
    }

    /// Makes a key of this form, with a list of other keys or room for a list. The driver may choose the variant.
    pub(crate) fn create_formed_mkey(
        &mut self,
        attr: MkeyAttr,
        form: Form,
        space: Space,
        list: &[u8],
        variant: Option<u8>,
    ) -> Result<Mkey> {
        self.core.mkeys.create_formed(attr, form, space, list, variant).ok_or(ENOMEM)
    }

    /// Changes the attributes of a key, as REREG_MR does: peers that know the key keep their access.
    pub fn modify_mkey(&mut self, mkey: Mkey, attr: MkeyAttr) -> Result<()> {
        self.core.mkeys.modify(mkey, attr).then_some(()).ok_or(EINVAL)
    }

    /// Ends a registration: the memory is not touched after this returns.
    pub fn destroy_mkey(&mut self, mkey: Mkey) -> Result<()> {
        self.core.mkeys.destroy(mkey).then_some(()).ok_or(EINVAL)
    }

    /// Ends the registration with this index, whatever its variant is now.
    pub(crate) fn destroy_mkey_index(&mut self, index: u32) -> Result<()> {
        self.core.mkeys.destroy_index(index).then_some(()).ok_or(EINVAL)
    }

    /// Creates a completion queue; the caller has filled its buffer with invalid CQEs.
    pub fn create_cq(&mut self, attr: CqAttr) -> Result<Cqn> {
        self.create_cq_in(attr, &Spaces::default())
    }

    /// Does the same with memory of other spaces.
    pub(crate) fn create_cq_in(&mut self, attr: CqAttr, spaces: &Spaces) -> Result<Cqn> {
        let mut queue = Cq::new(Cqn(0), attr, spaces)?;
        let mut made = Ok(());
        let number = self.core.cqs.insert_with(|number| {
            queue.renumber(Cqn(number));
            queue
        });
        let number = number.ok_or(ENOMEM)?;
        if let Err(error) = self.uar.attach_cq(attr.uar, number) {
            self.core.cqs.remove(number);
            made = Err(errno(error));
        }
        made.map(|()| Cqn(number))
    }

    /// Destroys a completion queue that no queue pair uses.
    pub fn destroy_cq(&mut self, cq: Cqn) -> Result<()> {
        // An arm that was rung before names a CQ that is there.
        self.take_doorbells(true);
        let uses = |qp: &Qp| qp.attr.send_cq == cq || qp.attr.recv_cq == cq;
        let reports = self.core.srqs.iter_mut().any(|(_, srq)| srq.own_cq() == Some(cq));
        if reports || self.is_cq_of_wq(cq) || self.qps.iter_mut().any(|(_, qp)| uses(qp)) {
            return Err(EBUSY);
        }
        let removed = self.core.cqs.remove(cq.0).ok_or(EINVAL)?;
        self.uar.detach_cq(removed.attr().uar, cq.0);
        self.core.events.retain(|event| !matches!(event, Event::Completion(n) | Event::CqError(n) if *n == cq));
        Ok(())
    }

    /// Moves a completion queue to a new buffer: a resize CQE ends the old one.
    pub fn resize_cq(&mut self, cq: Cqn, buf: u64, cqe_count: u32) -> Result<()> {
        self.resize_cq_in(cq, &Space::Process, buf, cqe_count)
    }

    /// Does the same with a buffer in another space.
    pub(crate) fn resize_cq_in(&mut self, cq: Cqn, space: &Space, buf: u64, cqe_count: u32) -> Result<()> {
        self.core.release_completions_to(cq);
        let cq = self.core.cqs.get_mut(cq.0).ok_or(EINVAL)?;
        cq.resize(space, buf, cqe_count, &mut self.core.strict)
    }

    /// Creates a shared receive queue.
    pub fn create_srq(&mut self, attr: SrqAttr) -> Result<Srqn> {
        self.create_srq_in(attr, &Spaces::default())
    }

    /// Does the same with memory of other spaces.
    pub(crate) fn create_srq_in(&mut self, attr: SrqAttr, spaces: &Spaces) -> Result<Srqn> {
        if let SrqKind::TagMatching { cq, .. } = attr.kind {
            self.core.cqs.get(cq.0).ok_or(EINVAL)?;
        }
        Srq::new(Srqn(0), attr, spaces)?;
        let made = self.core.srqs.insert_with(|number| Srq::new(Srqn(number), attr, spaces).expect("checked above"));
        made.map(Srqn).ok_or(ENOMEM)
    }

    /// Sets the limit that raises [`Event::SrqLimit`] once; 0 disarms it.
    pub fn modify_srq_limit(&mut self, srq: Srqn, limit: u32) -> Result<()> {
        let event = self.core.srqs.get_mut(srq.0).ok_or(EINVAL)?.set_limit(limit);
        self.core.events.extend(event);
        Ok(())
    }

    /// Returns the present limit: 0 once the event was raised.
    pub fn srq_limit(&self, srq: Srqn) -> Result<u32> {
        Ok(self.core.srqs.get(srq.0).ok_or(EINVAL)?.attr().limit)
    }

    /// Returns the tag list of an SRQ for tag matching.
    pub(crate) fn tag_list(&self, srq: Srqn) -> Result<&TagList> {
        self.core.srqs.get(srq.0).and_then(|srq| srq.tags.as_ref()).ok_or(EINVAL)
    }

    /// Destroys a shared receive queue that no queue pair uses.
    pub fn destroy_srq(&mut self, srq: Srqn) -> Result<()> {
        if self.qps.iter_mut().any(|(_, qp)| qp.attr.srq == Some(srq)) {
            return Err(EBUSY);
        }
        self.core.srqs.remove(srq.0).map(drop).ok_or(EINVAL)
    }

    /// Creates a queue pair in state Reset.
    pub fn create_qp(&mut self, attr: QpAttr) -> Result<Qpn> {
        self.create_qp_in(attr, &Spaces::default())
    }

    /// Does the same with memory of other spaces.
    pub(crate) fn create_qp_in(&mut self, attr: QpAttr, spaces: &Spaces) -> Result<Qpn> {
        let cqs = [attr.send_cq, attr.recv_cq];
        let srq = attr.srq.and_then(|srq| self.core.srqs.get(srq.0));
        let tagged = srq.is_some_and(|srq| srq.tags.is_some());
        let srq_fits = attr.srq.is_some() == srq.is_some() && (!tagged || attr.service == Service::Rc);
        if !srq_fits || cqs.iter().any(|cq| self.core.cqs.get(cq.0).is_none()) {
            return Err(EINVAL);
        }
        Qp::new(0, attr, spaces)?;
        let made = self.qps.insert_with(|number| Box::new(Qp::new(number, attr, spaces).expect("checked above")));
        let number = made.ok_or(ENOMEM)?;
        if tagged && attr.sq.count == 0 {
            if let Some(qp) = self.qps.get_mut(number) {
                qp.offload_rendezvous()?;
            }
        }
        if attr.sq.count > 0 {
            if let Err(error) = self.uar.attach_qp(attr.register, number) {
                self.qps.remove(number);
                return Err(errno(error));
            }
        }
        if attr.service == Service::Raw {
            if let Err(error) = self.create_receiver(Qpn(number), &attr, spaces) {
                self.destroy_qp(Qpn(number))?;
                return Err(error);
            }
        }
        Ok(Qpn(number))
    }

    /// Changes the context of a queue pair.
    pub fn modify_qp(&mut self, qp: Qpn, change: &QpModify) -> Result<()> {
        // Doorbells that were rung before the change belong to the state before it.
        self.take_doorbells(true);
        let found = self.qps.get_mut(qp.0).ok_or(EINVAL)?;
        found.modify(change, &mut self.core);
        self.follow_queue_pair(qp);
        Ok(())
    }

    /// Moves a queue pair to error by itself; returns `false` if it does not receive.
    pub fn fail_qp(&mut self, qp: Qpn) -> bool {
        let Some(found) = self.qps.get_mut(qp.0).filter(|qp| qp.receives()) else { return false };
        found.fail_fatally(&mut self.core);
        true
    }

    /// Reports the state that the device changes by itself.
    pub fn query_qp(&self, qp: Qpn) -> Result<QpStatus> {
        Ok(self.qps.get(qp.0).ok_or(EINVAL)?.status())
    }

    /// Destroys a queue pair; its queues are not touched after this returns.
    pub fn destroy_qp(&mut self, qp: Qpn) -> Result<()> {
        self.take_doorbells(true);
        // Only a target has connections.
        let _ = self.end_connections(qp);
        let mut removed = self.qps.remove(qp.0).ok_or(EINVAL)?;
        self.destroy_receiver(qp);
        removed.release(&mut self.core);
        self.core.release_completions_of(qp.0);
        self.core.counters.assign(Counted::Qp(qp.0), 0);
        self.uar.detach_qp(removed.attr.register, qp.0);
        self.groups.retain(|(_, member)| *member != qp);
        for bound in &mut self.management_qps {
            bound.take_if(|bound| *bound == qp);
        }
        Ok(())
    }

    /// Lets a UD queue pair stand for queue pair 0 or 1 of the port: it receives what comes for that number, and sends
    /// in its name. The last one bound receives.
    pub(crate) fn bind_management(&mut self, qp: Qpn, number: usize) {
        if let Some(found) = self.qps.get_mut(qp.0) {
            found.wire_number = number as u32;
            self.management_qps[number] = Some(qp);
        }
    }

    /// Begins a set of counters.
    pub(crate) fn begin_counters(&mut self, set: u8) {
        self.core.counters.begin(set);
    }

    /// Ends a set of counters.
    pub(crate) fn end_counters(&mut self, set: u8) {
        self.core.counters.end(set);
    }

    /// Lets a queue count in a set, too.
    pub(crate) fn count_in(&mut self, queue: Counted, set: u8) {
        self.core.counters.assign(queue, set);
    }

    /// Returns the counters of a set, which the driver may set to zero.
    pub(crate) fn counters_of(&mut self, set: u8) -> Result<&mut Hardware> {
        self.core.counters.set(set).ok_or(EINVAL)
    }

    /// Returns how many queue pairs are in groups, each counted once in each of its groups.
    pub(crate) fn attached_members(&self) -> usize {
        self.groups.len()
    }

    /// Returns what QUERY_CQ tells.
    pub(crate) fn cq_status(&self, cq: Cqn) -> Result<CqStatus> {
        Ok(self.core.cqs.get(cq.0).ok_or(EINVAL)?.status())
    }

    /// Delivers datagrams for a multicast group to a UD queue pair.
    pub fn attach_multicast(&mut self, qp: Qpn, group: [u8; 16]) -> Result<()> {
        let found = self.qps.get(qp.0).ok_or(EINVAL)?;
        if found.attr.service != Service::Ud || !address::is_multicast_gid(&group) {
            return Err(EINVAL);
        }
        if !self.groups.contains(&(group, qp)) {
            self.groups.push((group, qp));
        }
        Ok(())
    }

    /// Undoes [`Self::attach_multicast`].
    pub fn detach_multicast(&mut self, qp: Qpn, group: [u8; 16]) -> Result<()> {
        let index = self.groups.iter().position(|entry| *entry == (group, qp)).ok_or(EINVAL)?;
        self.groups.remove(index);
        Ok(())
    }
}
