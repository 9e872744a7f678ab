//! Counts the instructions of one message at a time in a program outside of the workspace of doorbell, and compares
//! them with the rows that its benches have counted. `outside BASELINE`, on soft-mlx5.

use std::error::Error;
use std::hint::black_box;
use std::{array, env, fs, process};

use doorbell::{
    BufferPool, Completions, CqConfig, PoolConfig, QpConfig, QueuePair, Receiver, Sender, SqId, SrqConfig,
};

#[path = "../../src/step.rs"]
#[allow(dead_code)]
mod step;

/// As of the benches.
const LEN: usize = 32;
const RECEIVES: u32 = 255;
const ROUNDS: usize = 128;
/// Instructions by which a row may be dearer than that of the benches.
const SLACK: f64 = 3.0;

struct Single {
    receiver: Receiver,
    sender: Sender,
    queue: SqId,
    _qp: QueuePair,
}

impl Single {
    fn new() -> Result<Self, Box<dyn Error>> {
        let pd = doorbell::open("mlx5_0")?.alloc_pd()?;
        let mut receiver = Receiver::new(&pd, &CqConfig::new(RECEIVES))?;
        let mut sender = Sender::new(&pd, &CqConfig::new(256))?;
        let srq = receiver.create_srq(&SrqConfig::new(RECEIVES))?;
        let config = QpConfig::rc().max_send_wr(64).max_inline(LEN as u32);
        let mut qp = QueuePair::builder(&config).receive(&mut receiver, srq).send(&mut sender).build()?;
        let itself = qp.address()?;
        qp.connect(&itself)?;
        let pool = BufferPool::new(&pd, &PoolConfig::new(RECEIVES + 1, 256))?;
        receiver.fill(srq, &pool)?;
        let queue = SqId::from(&qp);
        Ok(Self { receiver, sender, queue, _qp: qp })
    }

    #[inline(always)]
    fn send(&mut self) {
        self.sender.send(self.queue, black_box(&[7; LEN])).expect("room");
    }

    #[inline(always)]
    fn receive(&mut self) {
        let message = self.receiver.next().expect("a message").expect("no failure");
        black_box((message.as_ptr(), message.len()));
        step::mark();
    }

    #[inline(always)]
    fn sent(&mut self) {
        if let Some(done) = self.sender.next() {
            black_box(done.expect("no failure").token);
        }
    }

    #[inline(always)]
    fn poll_nothing(&mut self) {
        assert!(self.receiver.next().is_none());
    }

    /// Waits for the device, which delivers a message before it completes the send. Asking the receiver would do its
    /// upkeep.
    fn deliver(&mut self) {
        while !self.sender.has_completions() {}
    }
}

/// Counts medians of critical receives and of polls of nothing, and means of the others.
fn count(single: &mut Single) -> [(&'static str, f64); 5] {
    let mut medians: [Vec<u64>; 2] = array::from_fn(|_| Vec::new());
    for round in 0..3 * ROUNDS {
        single.poll_nothing();
        let nothing = step::count(|| single.poll_nothing());
        single.send();
        single.deliver();
        let receive = step::count(|| single.receive());
        single.sent();
        if round >= 2 * ROUNDS {
            medians[0].push(receive.to_mark);
            medians[1].push(nothing.all);
        }
    }
    let mut sums = [0; 3];
    for _ in 0..ROUNDS {
        let send = step::count(|| single.send());
        single.deliver();
        let receive = step::count(|| single.receive());
        let sent = step::count(|| single.sent());
        let counts = [receive.all, sent.all, send.all + receive.all + sent.all];
        sums.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
    }
    let [receive, nothing] = medians.map(|mut counts| {
        counts.sort_unstable();
        counts[ROUNDS / 2] as f64
    });
    let [whole, completion, round] = sums.map(|sum| sum as f64 / ROUNDS as f64);
    [
        ("one message: critical, receive", receive),
        ("one message: nothing has arrived", nothing),
        ("one message: receive, whole", whole),
        ("one message: completion", completion),
        ("one message: round", round),
    ]
}

fn main() -> Result<(), Box<dyn Error>> {
    let baseline = fs::read_to_string(env::args().nth(1).ok_or("outside BASELINE")?)?;
    let mut dearer = 0;
    for (row, here) in count(&mut Single::new()?) {
        let line = baseline.lines().find_map(|line| line.strip_prefix(row)?.strip_prefix('\t'));
        let inside: f64 = line.and_then(|line| line.split('\t').next()).ok_or("no such row")?.parse()?;
        let is_dearer = here - inside > SLACK;
        println!("{row}: {here:.2}, in the workspace {inside:.2}{}", if is_dearer { ": DEARER" } else { "" });
        dearer += u32::from(is_dearer);
    }
    process::exit(if dearer == 0 { 0 } else { 1 });
}
