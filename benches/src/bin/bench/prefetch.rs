//! Nanoseconds per message of a program that reads its messages, with and without `ReceiverConfig::prefetch`.
//!
//! The device itself writes the messages here, outside of what is measured: on this core, on this core with the
//! buffers flushed afterwards, or on the other core. The arms take turns.

use std::ptr::NonNull;
use std::thread;
use std::time::Instant;

use doorbell::{
    BufferPool, ProtectionDomain, QpConfig, QueuePair, Receiver, ReceiverConfig, Sender,
    SenderConfig, SqId, SrqConfig,
};
use doorbell_benches::lines::{self, Lines};
use doorbell_benches::world::World;
use soft_mlx5::Device;

/// Receives, each of which has a buffer of its own.
const RECEIVES: u32 = 1023;
/// Bytes of a buffer: all of them together are more than the second-level cache holds.
const BUFFER: u32 = 4096;
/// Messages of a batch.
const BATCH: u32 = 32;
/// Batches of each arm.
const SAMPLES: usize = 301;
/// Cache lines that are prefetched; the first is what the others are compared with.
const ARMS: [u32; 4] = [0, 1, 4, 16];

/// A receiver, and what sends to it.
struct Arm {
    receiver: Receiver,
    memory: (NonNull<u8>, usize),
    sender: Sender,
    queue: SqId,
    messages: BufferPool,
    samples: Vec<f64>,
    _ends: [QueuePair; 2],
    _far: Receiver,
}

// SAFETY: the address is that of memory which stays, and only flushed.
unsafe impl Send for Arm {}

impl Arm {
    fn new(pd: &ProtectionDomain, lines: u32) -> Result<Self, Box<dyn std::error::Error>> {
        let config = ReceiverConfig::new().cq_capacity(RECEIVES).prefetch(lines);
        let mut receiver = Receiver::new(pd, &config)?;
        let srq = receiver.create_srq(&SrqConfig::new(RECEIVES))?;
        let mut memory = vec![0u8; (RECEIVES as usize + 2) * BUFFER as usize];
        let at = (NonNull::from(&mut memory[..]).cast(), memory.len());
        let pool = BufferPool::from_memory(pd, memory, BUFFER)?;
        assert_eq!(receiver.fill(srq, &pool).unwrap(), RECEIVES as usize);
        let mut far = Receiver::new(pd, &ReceiverConfig::new())?;
        let mut near = receiver.create_qp(&QpConfig::rc().srq(srq))?;
        let mut sender = Sender::new(pd, &SenderConfig::new())?;
        let sending = QpConfig::rc().sends(BATCH);
        let mut from = far.create_qp_with_sender(&sending, &mut sender)?;
        let queue = from.send_queue().ok_or("no send queue")?;
        near.connect(&from.address()?)?;
        from.connect(&near.address()?)?;
        let messages = BufferPool::new(pd, BATCH, BUFFER)?;
        Ok(Self {
            receiver,
            memory: at,
            sender,
            queue,
            messages,
            samples: Vec::new(),
            _ends: [near, from],
            _far: far,
        })
    }

    /// Has a batch of messages of `len` bytes arrive.
    fn send(&mut self, device: &Device, len: usize) {
        let mut posting = self.sender.post(self.queue).expect("a connection");
        for number in 0..BATCH {
            let mut message = self.messages.take().expect("all sends have ended");
            message.set_len(len);
            message.fill(number as u8);
            posting.send(message).expect("room for a batch");
        }
        drop(posting);
        device.settle();
        let mut batch = self.sender.poll();
        for _ in 0..BATCH {
            let sent = batch.next().expect("the device is at rest");
            assert!(sent.status.is_success(), "{}", sent.status);
        }
    }

    /// Takes a batch and reads all bytes of it, which add up to `expected`.
    fn read(&mut self, expected: u64) -> f64 {
        let mut sum = 0u64;
        let start = Instant::now();
        let mut batch = self.receiver.poll_up_to(BATCH);
        while let Some(message) = batch.next() {
            let Ok(message) = message else { panic!("a message failed") };
            for word in message.chunks_exact(8) {
                sum = sum.wrapping_add(u64::from_ne_bytes(word.try_into().expect("eight bytes")));
            }
        }
        drop(batch);
        let time = start.elapsed();
        assert_eq!(sum, expected, "what was read is not what was sent");
        time.as_nanos() as f64 / f64::from(BATCH)
    }
}

/// Prints a table.
///
/// # Errors
/// When the objects cannot be made.
pub(crate) fn run() -> Result<(), Box<dyn std::error::Error>> {
    let world = World::new();
    let device = &*world.device;
    let other_core = lines::pin(1);
    lines::pin(0);
    println!("ns/message; lines prefetched: {ARMS:?}; ratios to none");
    for lines in [Lines::Warm, Lines::Flushed, Lines::OtherCore] {
        if lines == Lines::OtherCore && !other_core {
            println!("not measured: messages written by another core, for there is only one");
            continue;
        }
        for len in [64, 1024, BUFFER as usize] {
            let mut arms = Vec::new();
            for prefetched in ARMS {
                arms.push(Arm::new(&world.pd, prefetched)?);
            }
            compare(device, &mut arms, lines, len);
        }
    }
    Ok(())
}

fn compare(device: &Device, arms: &mut [Arm], lines: Lines, len: usize) {
    let words = (0..BATCH).map(|number| u64::from_ne_bytes([number as u8; 8]));
    let expected = words.fold(0u64, u64::wrapping_add).wrapping_mul(len as u64 / 8);
    for _ in 0..SAMPLES {
        for arm in &mut *arms {
            if lines == Lines::OtherCore {
                thread::scope(|scope| {
                    scope.spawn(|| {
                        lines::pin(1);
                        arm.send(device, len);
                    });
                });
            } else {
                arm.send(device, len);
            }
            if lines == Lines::Flushed {
                // SAFETY: the memory of the pool, which lives for as long as the arm.
                unsafe { lines::flush(arm.memory.0, arm.memory.1) };
            }
            let time = arm.read(expected);
            arm.samples.push(time);
        }
    }
    let mut medians = Vec::new();
    for arm in arms {
        arm.samples.sort_by(f64::total_cmp);
        medians.push(arm.samples[SAMPLES / 2]);
    }
    let cells = medians.iter().map(|median| format!("{median:8.1} ({:.2})", median / medians[0]));
    println!("{len:5} bytes, {:<10}{}", lines.name(), cells.collect::<String>());
}
