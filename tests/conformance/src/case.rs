//! Runs the operations of a plan on both twins and compares after each.

mod compare;
mod post;

use std::collections::HashMap;

use proptest::strategy::Strategy;
use rdma_core_sys as sys;

use soft_mlx5::Faults;

use crate::difference::{Difference, Result, same, same_bytes};
use crate::fault::Faulty;
use crate::memory::{Arena, Region};
use crate::pair::Pair;
use crate::plan::{self, Entry, Give, Key, Layer, Operation, Send, SendKind, Shape};
use crate::queue::{CompletionQueue, WorkQueue};
use crate::reference;
use crate::session::{self, Kind, Memory, Outcome, Plan, Run};
use crate::subject::{self, Completion, Receive, Subject};
use crate::tally;
use crate::twin::Twin;
use crate::verbs;

struct Case<'a> {
    // Before its twin.
    subject: Box<dyn Subject>,
    doorbell: Twin,
    libmlx5: Twin,
    shape: Shape,
    arena: Arena,
    /// Messages carry bytes: the memory that they are written to is compared.
    payload: bool,
    queues: Vec<Pair>,
    cqs: [CompletionQueue; 2],
    receives: HashMap<u64, Receive>,
    /// QPs that are in error.
    failed: Vec<bool>,
    operation: u64,
    run: Run<'a>,
}

/// Sessions of receive queues and SRQs.
pub struct Queues;

impl Kind for Queues {
    type Shape = Shape;
    type Operation = Operation;

    fn plan(number: u64) -> impl Strategy<Value = Plan<Shape, Operation>> {
        plan::plan(number)
    }

    fn run(plan: &Plan<Shape, Operation>, memory: Memory, run: Run<'_>) -> Outcome {
        session::drive(Case::new(&plan.shape, memory, run), &plan.operations)
    }
}

impl<'a> session::Case<'a> for Case<'a> {
    type Operation = Operation;

    fn run(&mut self) -> &mut Run<'a> {
        &mut self.run
    }

    fn lead(&mut self) -> Result<()> {
        self.receive_lead()
    }

    fn apply(&mut self, number: u64, operation: &Operation) -> Result<()> {
        self.operation = number;
        self.perform(operation)
    }

    fn compare(&mut self, thorough: bool) -> Result<()> {
        self.compare_queues(thorough)
    }

    fn count(&mut self) {
        self.count_laps();
    }
}

impl<'a> Case<'a> {
    fn new(shape: &Shape, memory: Memory, run: Run<'a>) -> Self {
        let Memory { arena, source, target, .. } = memory;
        let mut doorbell = Twin::new("twin_doorbell", shape, source, target);
        let mut libmlx5;
        let mut regions;
        let mut subject: Box<dyn Subject> = match shape.layer {
            Layer::Ring => {
                libmlx5 = Twin::new("twin_libmlx5", shape, source, target);
                regions = vec![arena];
                let keys = [sys::IBV_ACCESS_LOCAL_WRITE, 0].map(|access| {
                    let key = libmlx5.register_arena(arena, access);
                    assert_eq!(key, doorbell.register_arena(arena, access), "equal keys");
                    key
                });
                let arena = arena.address();
                let keys = subject::Keys { arena, good: keys[0], read_only: keys[1] };
                Box::new(subject::Ring::new(&doorbell, shape, keys))
            }
            Layer::Safe => {
                let pools = subject::Pools::new(&doorbell, shape);
                libmlx5 = Twin::new("twin_libmlx5", shape, source, target);
                regions = pools.memory();
                let access = sys::IBV_ACCESS_LOCAL_WRITE;
                let keys: Vec<_> =
                    regions.iter().map(|region| libmlx5.register_arena(*region, access)).collect();
                Box::new(subject::Safe::new(&doorbell, shape, pools, &keys))
            }
        };
        regions.push(target);
        let (theirs, ours) = (libmlx5.queues(), doorbell.queues());
        let slots = shape.shared.then(|| (shape.max_wr + 1).next_power_of_two());
        let numbers: Vec<_> = (0..shape.qps as usize).map(|qp| libmlx5.qp_num(qp)).collect();
        let ours_now = WorkQueue::of(&ours, slots, &numbers);
        let cqs = [CompletionQueue::of(&theirs), CompletionQueue::of(&ours)];
        if let Some(fault) = run.fault {
            subject = Box::new(Faulty::new(subject, fault, &ours_now, &cqs[1]));
        }
        let queues = WorkQueue::of(&theirs, slots, &numbers)
            .into_iter()
            .zip(ours_now)
            .map(|(libmlx5, doorbell)| Pair::new(libmlx5, doorbell));
        Self {
            queues: queues.collect(),
            cqs,
            subject,
            doorbell,
            libmlx5,
            shape: shape.clone(),
            arena: Arena::new(regions),
            payload: false,
            receives: HashMap::new(),
            failed: vec![false; shape.qps as usize],
            operation: 0,
            run,
        }
    }

    /// Receives empty messages until the counters are near their wrap.
    fn receive_lead(&mut self) -> Result<()> {
        let mut left = self.shape.lead;
        let entry = Entry { offset: 0, length: 64, key: Key::Good };
        let send = Send { kind: SendKind::WriteImmediate(0), length: 0, solicited: false };
        while left > 0 {
            let count = left.min(self.queues[0].doorbell.capacity()).min(256);
            let receives = self.subject.prepare(&vec![vec![entry]; count as usize]);
            self.post(0, &receives)?;
            self.send(0, &vec![send; count as usize])?;
            self.work()?;
            self.poll(count, &[Give::Take])?;
            left -= count;
        }
        self.payload = true;
        if self.shape.lossy {
            let faults = Faults { loss: 0.02, reordering: 0.05, ..Faults::default() };
            for twin in [&self.libmlx5, &self.doorbell] {
                twin.device.set_faults(faults);
            }
        }
        self.compare_queues(true)
    }

    fn perform(&mut self, operation: &Operation) -> Result<()> {
        let queues = self.queues.len();
        let qps = self.shape.qps as usize;
        let qp = |number: &u32| *number as usize % qps;
        match operation {
            Operation::Post { queue, lists } => {
                let receives = self.subject.prepare(lists);
                self.post(*queue as usize % queues, &receives)
            }
            Operation::Fill { queue, length } => self.fill(*queue as usize % queues, *length),
            Operation::Send { qp: number, sends, anew, run } => {
                if *anew && self.failed[qp(number)] {
                    self.reset(qp(number))?;
                }
                self.send(qp(number), sends)?;
                if *run { self.work() } else { Ok(()) }
            }
            Operation::Run => self.work(),
            Operation::Wait { milliseconds } => {
                let time = std::time::Duration::from_millis((*milliseconds).into());
                for twin in [&self.libmlx5, &self.doorbell] {
                    twin.device.advance(time);
                }
                self.work()
            }
            Operation::Poll { budget, give } => self.poll(*budget, give),
            Operation::GiveBack { index, recycle } => match self.subject.held() {
                0 => Ok(()),
                held => self.give_back(*index as usize % held, *recycle),
            },
            Operation::Arm { solicited_only } => self.arm(*solicited_only),
            Operation::Fail { qp: number } => {
                self.failed[qp(number)] = true;
                for twin in [&self.libmlx5, &self.doorbell] {
                    twin.fail(qp(number));
                }
                self.work()
            }
            Operation::Reset { qp: number } => self.reset(qp(number)),
        }
    }

    /// The queue that a QP takes receives from.
    fn queue_of(&self, qp_num: u32) -> usize {
        if self.shape.shared {
            return 0;
        }
        let numbers = 0..self.shape.qps as usize;
        numbers.into_iter().find(|qp| self.libmlx5.qp_num(*qp) == qp_num).unwrap_or(0)
    }

    fn send(&mut self, qp: usize, sends: &[Send]) -> Result<()> {
        let posted = [&self.libmlx5, &self.doorbell].map(|twin| twin.send(qp, sends) as u64);
        same(|| "sends that a peer took".into(), posted[0], posted[1])
    }

    /// Lets both devices work until there is nothing left to do.
    fn work(&mut self) -> Result<()> {
        self.remember();
        let ours = self.doorbell.work();
        self.put_back();
        let theirs = self.libmlx5.work();
        same(|| "steps of the device".into(), theirs as u64, ours as u64)?;
        self.compare_memory()?;
        let theirs = self.libmlx5.poll_peers();
        let ours = self.doorbell.poll_peers();
        for wc in theirs.iter().filter(|wc| wc.status != sys::IBV_WC_SUCCESS) {
            let failed = self.libmlx5.peer(wc.qp_num);
            self.failed[failed] = true;
        }
        same(|| "completions of peers".into(), theirs.len() as u64, ours.len() as u64)?;
        for (number, (theirs, ours)) in theirs.iter().zip(&ours).enumerate() {
            let all = [fields(theirs), fields(ours)];
            for ((name, theirs), (_, ours)) in all[0].iter().zip(&all[1]) {
                same(|| format!("completion {number} of peers: {name}"), *theirs, *ours)?;
            }
        }
        Ok(())
    }

    fn poll(&mut self, budget: u32, give: &[Give]) -> Result<()> {
        self.remember();
        let ours = self.subject.poll(budget, give);
        self.put_back();
        let theirs = verbs::poll(self.libmlx5.cq, budget);
        self.compare_memory()?;
        same(|| "completions".into(), theirs.len() as u64, ours.len() as u64)?;

        let mut candidates = vec![Vec::new(); self.queues.len()];
        for (number, (wc, completion)) in theirs.iter().zip(&ours).enumerate() {
            self.compare_completion(number, wc, completion)?;
            let queue = self.queue_of(wc.qp_num);
            self.complete(queue, wc.wr_id)?;
            let name = match completion.given {
                Give::Recycle => {
                    candidates[queue].push(wc.wr_id);
                    tally::RECYCLED
                }
                Give::Take => tally::TAKEN,
                Give::Hold => {
                    self.queues[queue].diverged |= self.shape.shared;
                    tally::HELD
                }
            };
            self.run.tally.add(name, 1);
        }
        let in_order = self.subject.held() == 0;
        for (queue, recycled) in candidates.into_iter().enumerate() {
            self.post_again(queue, recycled, in_order)?;
        }
        Ok(())
    }

    fn complete(&mut self, queue: usize, id: u64) -> Result<()> {
        self.queues[queue].complete(id, self.shape.shared, self.run.tally)
    }

    /// Asks for an event, and compares what is written to the register for it. The arm word of the record is
    /// compared with the queues.
    fn arm(&mut self, solicited_only: bool) -> Result<()> {
        self.subject.arm(solicited_only);
        reference::arm(&self.libmlx5, solicited_only);
        let rung = [(&self.libmlx5, 0), (&self.doorbell, 1)].map(|(twin, number)| {
            let doorbell = twin.device.cq_doorbell(self.cqs[number].number());
            doorbell.expect("the CQ exists")
        });
        self.run.tally.add(tally::ARMED, 1);
        self.run.tally.add(tally::REGISTERS, 1);
        self.run.tally.add(tally::EXACT, 8);
        same_bytes(|| "UAR: doorbell of the CQ".into(), &rung[0], &rung[1])
    }

    fn compare_completion(
        &mut self,
        number: usize,
        wc: &sys::ibv_wc,
        completion: &Completion,
    ) -> Result<()> {
        let theirs = fields(wc);
        for (name, ours) in &completion.fields {
            let Some((_, theirs)) = theirs.iter().find(|(known, _)| known == name) else {
                let field = format!("completion {number}: {name}");
                return Err(Difference::new(field, "absent", format!("{ours:#x}")));
            };
            same(|| format!("completion {number}: {name}"), *theirs, *ours)?;
        }
        if wc.status != sys::IBV_WC_SUCCESS {
            self.run.tally.add(tally::ERRORS, 1);
            return Ok(());
        }
        self.run.tally.add(tally::MESSAGES, 1);
        let Some(data) = &completion.data else { return Ok(()) };
        let mut left = data.len();
        let mut expected = Vec::new();
        for sge in &self.receives[&wc.wr_id].1 {
            let len = left.min(sge.length as usize);
            // SAFETY: the buffer of a receive that has completed: nobody writes it now.
            expected.extend(unsafe { Region::at(sge.addr, len) }.bytes(0, len));
            left -= len;
        }
        same_bytes(|| format!("completion {number}: bytes of the message"), &expected, data)
    }

    fn give_back(&mut self, index: usize, recycle: bool) -> Result<()> {
        let (queue, id) = self.subject.give_back(index, recycle);
        self.post_again(queue, if recycle { vec![id] } else { Vec::new() }, false)
    }

    fn reset(&mut self, qp: usize) -> Result<()> {
        self.run.tally.add(tally::RESETS, 1);
        self.failed[qp] = false;
        let queue = if self.shape.shared { 0 } else { qp };
        if !self.shape.shared {
            // A message of a receive queue cannot be given back after a reset.
            while self.subject.held() > 0 {
                self.give_back(0, false)?;
            }
        }
        let purged = self.completed_on(qp);
        self.subject.reset(qp);
        reference::reset(&self.libmlx5, qp);
        self.run.tally.add(tally::PURGED, purged.len() as u64);
        if self.shape.shared {
            // libmlx5 frees the slots from the newest to the oldest.
            self.queues[queue].diverged |= purged.len() > 1;
            for id in &purged {
                self.complete(queue, *id)?;
            }
            self.post_again(queue, purged, true)?;
        } else {
            let pair = &mut self.queues[queue];
            pair.libmlx5.reset();
            pair.doorbell.reset();
            pair.waiting.clear();
        }
        for twin in [&self.libmlx5, &self.doorbell] {
            twin.reset_peer(qp);
            twin.go_on(qp);
        }
        self.work()
    }

    /// Receives that have completed on a QP and were not polled, oldest first.
    fn completed_on(&self, qp: usize) -> Vec<u64> {
        use mlx5_wire::cqe::Cqe64;
        if !self.shape.shared {
            return Vec::new();
        }
        let view = &self.queues[0].libmlx5;
        let live = self.cqs[0].live(&self.libmlx5.queues());
        let cqes = live.iter().map(|entry| {
            let cqe = &entry[entry.len() - Cqe64::SIZE..];
            Cqe64::from_bytes(cqe.try_into().expect("a CQE"))
        });
        cqes.filter(|cqe| cqe.sop_drop_qpn.get() & 0xff_ffff == self.libmlx5.qp_num(qp))
            .filter_map(|cqe| view.outstanding_in(cqe.wqe_counter.get().into()))
            .map(|wqe| wqe.id)
            .collect()
    }

    /// Before the first twin's turn.
    fn remember(&mut self) {
        if self.payload {
            self.arena.remember();
        }
    }

    /// Between the twins' turns.
    fn put_back(&mut self) {
        if self.payload {
            self.arena.put_back();
        }
    }

    fn compare_memory(&mut self) -> Result<()> {
        if !self.payload {
            return Ok(());
        }
        match self.arena.compare() {
            Ok(bytes) => {
                self.run.tally.add(tally::PAYLOAD, bytes as u64);
                Ok(())
            }
            Err((region, ours, theirs)) => {
                same_bytes(|| format!("message memory, region {region}"), &theirs, &ours)
            }
        }
    }

    fn count_laps(&mut self) {
        let tally = &mut *self.run.tally;
        for pair in &self.queues {
            let (total, slots) = (pair.doorbell.total, u64::from(pair.doorbell.slots));
            let (laps, wraps) = if self.shape.shared {
                (tally::SRQ_LAPS, tally::SRQ_WRAPS)
            } else {
                (tally::RING_LAPS, tally::RING_WRAPS)
            };
            tally.add(tally::RECEIVES, total);
            tally.add(laps, total / slots);
            tally.add(wraps, pair.doorbell.wraps);
            tally.add(tally::SIZES, slots);
        }
        let consumed: u32 = self.cqs[1].record()[0];
        tally.add(tally::CQ_LAPS, u64::from(consumed / self.cqs[1].count()));
    }
}

/// What a completion of libibverbs says: the fields that its status and flags make valid.
pub fn fields(wc: &sys::ibv_wc) -> Vec<(&'static str, u64)> {
    let mut fields = vec![
        ("wr_id", wc.wr_id),
        ("status", wc.status.into()),
        ("vendor_err", wc.vendor_err.into()),
        ("qp_num", wc.qp_num.into()),
    ];
    if wc.status == sys::IBV_WC_SUCCESS {
        fields.extend([
            ("opcode", u64::from(wc.opcode)),
            ("byte_len", wc.byte_len.into()),
            ("src_qp", wc.src_qp.into()),
            ("wc_flags", wc.wc_flags.into()),
            ("with_imm", (wc.wc_flags & sys::IBV_WC_WITH_IMM != 0).into()),
            ("pkey_index", wc.pkey_index.into()),
            ("slid", wc.slid.into()),
            ("sl", wc.sl.into()),
            ("dlid_path_bits", wc.dlid_path_bits.into()),
        ]);
        if wc.wc_flags & sys::IBV_WC_WITH_IMM != 0 {
            // SAFETY: the flag says which member of the union was written.
            let imm = u32::from_be(unsafe { wc.__bindgen_anon_1.imm_data });
            fields.push(("imm_data", imm.into()));
        }
    }
    fields
}
