//! Objects without queues: users, domains, UAR pages, counters, multicast groups.

use mlx5_wire::firmware::command::{CreatePathMapping, Multicast};
use mlx5_wire::firmware::counters::{QueryQCounter, QueryQCounterReply};

use super::Execution;
use super::capabilities::PATH_MAPPING;
use super::limits::MAX_MCAST_MEMBERS;
use super::objects::{Entry, Id, Kind};
use super::opcodes::{Command, Result, answer, created};
use super::refusal::Refusal;
use crate::base::counters::Hardware;
use crate::engine::counting::Counted;
use crate::objects::Qpn;

/// Returns the answer of QUERY_Q_COUNTER. Counters go on at zero after 2^32.
fn reply(counters: &Hardware) -> QueryQCounterReply {
    macro_rules! of {
        ($($name:ident)*) => {
            QueryQCounterReply { $($name: counters.$name as u32,)* }
        };
    }
    of! {
        rx_write_requests rx_read_requests rx_atomic_requests out_of_buffer out_of_sequence duplicate_request
        rnr_nak_retry_err packet_seq_err implied_nak_seq_err local_ack_timeout_err req_rnr_retries_exceeded
        resp_local_length_error resp_cqe_error req_cqe_error req_remote_invalid_request req_remote_access_errors
        resp_remote_access_errors req_transport_retries_exceeded resp_cqe_flush_error req_cqe_flush_error
    }
}

impl Execution<'_> {
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

    pub(super) fn alloc_q_counter(&mut self, command: &Command, output: &mut [u8]) -> Result {
        let entry = Entry { uid: command.uid(), ..Entry::default() };
        let set = self.state.objects.insert_new(Kind::Counters, entry)?;
        self.nic.begin_counters(set as u8);
        created(output, set)
    }

    /// Returns the counters of a set. The sum of all sets is for nobody: they belong to several users.
    pub(super) fn query_q_counter(&mut self, command: &Command, output: &mut [u8]) -> Result {
        let QueryQCounter { clear, aggregate, set, .. } = command.parse()?;
        if aggregate {
            return Err(Refusal::ATTRIBUTES);
        }
        self.state.objects.find(Id(Kind::Counters, set.into()), command.uid())?;
        let counters = self.nic.counters_of(set)?;
        let now = *counters;
        if clear {
            *counters = Hardware::default();
        }
        answer(output, reply(&now))
    }

    /// Lets a queue count in a set that an object of `uid` may refer to. The set may end before the queue.
    pub(super) fn count_in(&mut self, queue: Counted, set: u8, uid: u16) -> Result {
        self.check_counters(set, uid)?;
        self.nic.count_in(queue, set);
        Ok(())
    }

    /// Checks that an object of `uid` may count in a set. Set 0 is none.
    pub(super) fn check_counters(&self, set: u8, uid: u16) -> Result {
        if set == 0 {
            return Ok(());
        }
        self.state.objects.check_use(Id(Kind::Counters, set.into()), uid).map(drop)
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
