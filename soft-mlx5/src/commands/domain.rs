//! Objects without queues: users, domains, UAR pages, counters, multicast groups.

use mlx5_wire::firmware::command::{CreatePathMapping, Multicast};

use super::Execution;
use super::capabilities::PATH_MAPPING;
use super::limits::MAX_MCAST_MEMBERS;
use super::objects::{Entry, Id, Kind};
use super::opcodes::{Command, Result, created};
use super::refusal::Refusal;
use crate::objects::Qpn;

impl Execution<'_> {
    /// Bytes of the answer of QUERY_Q_COUNTER.
    pub(super) const QUEUE_COUNTERS: usize = 0x100;

    /// Makes an object that is no more than its number.
    pub(super) fn create_numbered(&mut self, kind: Kind, command: &Command, output: &mut [u8]) -> Result {
        let entry = Entry { uid: command.uid(), ..Entry::default() };
        created(output, self.state.objects.insert_new(kind, entry)?)
    }

    /// Makes a general object. A path that is mapped to a queue pair is a hint, and the queue pair may go before it.
    pub(super) fn create_general_object(&mut self, command: &Command, output: &mut [u8]) -> Result {
        let CreatePathMapping { qpn, .. } = command.parse()?;
        if command.request.op_mod != PATH_MAPPING {
            return Err(Refusal::GENERAL_OBJECT);
        }
        self.state.objects.get(Kind::Qp, qpn).ok_or(Refusal::NO_OBJECT)?;
        self.create_numbered(Kind::PathMapping, command, output)
    }

    pub(super) fn alloc_pd(&mut self, command: &Command, output: &mut [u8]) -> Result {
        let pd = self.nic.alloc_pd()?;
        let entry = Entry { uid: command.uid(), ..Entry::default() };
        self.state.objects.insert(Id(Kind::Pd, pd.0), entry);
        created(output, pd.0)
    }

    /// A user is the driver's, whoever the command names.
    pub(super) fn create_user(&mut self, _: &Command, output: &mut [u8]) -> Result {
        created(output, self.state.objects.insert_new(Kind::User, Entry::default())?)
    }

    pub(super) fn destroy_user(&mut self, command: &Command, _: &mut [u8]) -> Result {
        let uid = command.number()?;
        if u16::try_from(uid).is_ok_and(|uid| self.state.objects.owns(uid)) {
            return Err(Refusal::IN_USE);
        }
        self.destroy(Kind::User, command)
    }

    /// Counters of queues: nothing is counted.
    pub(super) fn query_q_counter(&mut self, command: &Command, _: &mut [u8]) -> Result {
        let set = command.input.get(0x1f).copied().ok_or(Refusal::INPUT_LENGTH)?;
        self.state.objects.find(Id(Kind::Counters, set.into()), command.uid()).map(drop)
    }

    fn member(&self, command: &Command) -> Result<(Qpn, [u8; 16])> {
        let Multicast { qpn, gid, .. } = command.parse()?;
        self.state.objects.find(Id(Kind::Qp, qpn), command.uid())?;
        Ok((Qpn(qpn), gid))
    }

    pub(super) fn attach_multicast(&mut self, command: &Command, _: &mut [u8]) -> Result {
        let (qpn, gid) = self.member(command)?;
        if self.nic.attached_members() >= MAX_MCAST_MEMBERS {
            return Err(Refusal::TOO_MANY);
        }
        self.nic.attach_multicast(qpn, gid).map_err(|_| Refusal::GROUP_ADDRESS)
    }

    pub(super) fn detach_multicast(&mut self, command: &Command, _: &mut [u8]) -> Result {
        let (qpn, gid) = self.member(command)?;
        self.nic.detach_multicast(qpn, gid).map_err(|_| Refusal::MEMBER)
    }
}
