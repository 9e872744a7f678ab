//! Many frames with one call: multi-packet WQEs, and a WQE for each frame where there are none.

use doorbell::frames::{FrameConfig, FrameReceiver};
use doorbell::{Buffer, BufferPool, CqConfig, DataPath, NotSent, PoolConfig, ProtectionDomain, Sender, WcStatus};
use doorbell_stepped_tests::frames::{GROUP, HEADERS, datagram, ethernet, feed, is_datagram};
use doorbell_stepped_tests::{PATHS, cq};
use soft_mlx5::Device;

/// Frames of a multi-packet WQE.
const TOGETHER: usize = 32;

/// A sender of bursts on a context of its own.
struct Burst {
    sender: Sender,
    frames: FrameReceiver,
    pool: BufferPool,
}

impl Burst {
    fn new(device: &Device, path: DataPath, config: FrameConfig) -> Self {
        let pd = other_domain(device);
        let config = config.plain(4, 64).cq(cq(path));
        let with = CqConfig::for_frame_sends(&config, 1).path(path);
        let mut sender = Sender::new(&pd, &with).unwrap();
        let frames = FrameReceiver::with_sender(&pd, &config, &mut sender).unwrap();
        Self { sender, frames, pool: BufferPool::new(&pd, &PoolConfig::new(256, 10_240)).unwrap() }
    }

    /// Returns a frame of `len` bytes in a buffer.
    fn frame(&self, len: usize, first: u8) -> Buffer {
        let mut buffer = self.pool.take().expect("a free buffer");
        buffer.extend_from_slice(&datagram(GROUP, 5, len, first));
        buffer
    }

    fn send(&mut self, frames: &mut Vec<Buffer>, token: u64) -> Result<(), NotSent> {
        let queue = self.frames.send_queue().unwrap();
        self.sender.post_many(queue).unwrap().token(token).send_frames(frames, true)
    }

    /// Takes all completions; returns how many frames each had.
    fn reap(&mut self, token: u64) -> Vec<usize> {
        let mut counts = Vec::new();
        while let Some(done) = self.sender.next() {
            let mut done = done.unwrap();
            assert_eq!(done.token, token);
            let mut sent = Vec::new();
            if token % 2 == 0 {
                sent.extend(done.buffer.take());
                sent.extend(std::iter::from_fn(|| done.next_buffer()));
            } else {
                done.take_buffers(&mut sent);
            }
            assert!(sent.iter().all(|frame| frame.len() >= HEADERS), "as it was sent");
            counts.push(sent.len());
        }
        counts
    }
}

fn other_domain(device: &Device) -> ProtectionDomain {
    doorbell::open(device.name()).unwrap().alloc_pd().unwrap()
}

/// Each way to send, and how many frames complete together at most.
fn ways() -> [(DataPath, FrameConfig, usize); 3] {
    let config = FrameConfig::new().max_send_wr(128);
    [
        (DataPath::Direct, config.clone(), TOGETHER),
        (DataPath::Direct, config.clone().multi_packet(false), 1),
        (DataPath::Verbs, config, 1),
    ]
}

#[test]
fn frames_arrive_in_order_and_their_buffers_return() {
    for (path, config, together) in ways() {
        let (device, pd) = ethernet();
        let mut receiver = FrameReceiver::new(&pd, &FrameConfig::new().plain(128, 2048)).unwrap();
        let _rule = receiver.attach(&feed()).unwrap();
        let mut burst = Burst::new(&device, path, config);
        let whole = burst.pool.available();
        let mut first = 0u8;
        // All numbers of frames, many laps of the ring: the WQEs end at each unit of it.
        for count in (1..=100).chain([33, 64, 65, 31, 7]) {
            let token = count as u64;
            let lens: Vec<_> = (0..count).map(|at| 60 + 7 * ((at + count) % 150)).collect();
            let mut frames: Vec<_> =
                lens.iter().zip(0..).map(|(len, at)| burst.frame(*len, first.wrapping_add(at))).collect();
            burst.send(&mut frames, token).unwrap();
            assert!(frames.is_empty());
            device.settle();
            let mut batch = receiver.poll_up_to(128);
            for len in lens {
                let frame = batch.next().expect("a frame").unwrap();
                assert!(is_datagram(&frame, len, first) && frame.checksum_ok(), "{len} bytes of {count} frames");
                first = first.wrapping_add(1);
            }
            assert!(batch.next().is_none());
            drop(batch);
            let mut expected = vec![together; count / together];
            expected.extend((count % together > 0).then_some(count % together));
            assert_eq!(burst.reap(token), expected);
            assert_eq!(burst.pool.available(), whole);
        }
    }
}

/// Frames that find no room stay with the program, in order.
#[test]
fn a_full_queue_takes_what_fits() {
    for (path, config, _) in ways() {
        let (device, pd) = ethernet();
        let mut receiver = FrameReceiver::new(&pd, &FrameConfig::new().plain(64, 2048)).unwrap();
        let _rule = receiver.attach(&feed()).unwrap();
        let mut burst = Burst::new(&device, path, config.max_send_wr(4));
        let mut frames: Vec<_> = (0..40).map(|at| burst.frame(100, at)).collect();
        let mut refusals = 0;
        while !frames.is_empty() {
            match burst.send(&mut frames, 7) {
                Ok(()) => {}
                Err(NotSent::Full { .. }) => refusals += 1,
                Err(error) => panic!("{error}"),
            }
            // The device must execute the WQEs, which are outstanding until then.
            device.settle();
            burst.reap(7);
        }
        assert!(refusals > 0);
        (0..40).for_each(|at| {
            let frame = receiver.next().expect("a frame").unwrap();
            assert!(is_datagram(&frame, 100, at));
        });
        assert_eq!(burst.pool.available(), 256);
    }
}

/// The frames before a refused one are sent; it and those after it are still the program's.
#[test]
fn a_refused_frame_is_the_first_that_is_left() {
    let refused = |burst: &mut Burst, bad: Buffer, device: &Device| {
        let mut frames: Vec<_> = (0..3).map(|at| burst.frame(100, at)).collect();
        frames.insert(1, bad);
        let error = burst.send(&mut frames, 1).unwrap_err();
        assert_eq!(frames.len(), 3);
        assert_eq!(frames[1][HEADERS], 1);
        device.settle();
        assert_eq!(burst.reap(1).iter().sum::<usize>(), 1);
        error
    };
    for (path, config, _) in ways() {
        let (device, _pd) = ethernet();
        let mut burst = Burst::new(&device, path, config);
        let mut runt = burst.pool.take().unwrap();
        runt.extend_from_slice(&[2; 18]);
        let error = refused(&mut burst, runt, &device);
        assert!(matches!(error, NotSent::Runt { len: 18, min: 19 }), "{error}");
        let other = Burst::new(&device, path, FrameConfig::new());
        let foreign = other.frame(100, 9);
        let error = refused(&mut burst, foreign, &device);
        assert!(matches!(error, NotSent::WrongDomain), "{error}");
    }
    // No frames are no request.
    let (device, _pd) = ethernet();
    let mut burst = Burst::new(&device, DataPath::Direct, FrameConfig::new());
    burst.send(&mut Vec::new(), 1).unwrap();
    device.settle();
    assert_eq!(burst.reap(1), []);
}

/// A frame that the port does not take fails its WQE, whose frames all come back.
#[test]
fn all_frames_of_a_failed_wqe_return() {
    let (device, _pd) = ethernet();
    let mut burst = Burst::new(&device, DataPath::Direct, FrameConfig::new());
    let lens = [100, 10_001, 200];
    let mut frames: Vec<_> = lens.iter().map(|len| burst.frame(*len, 0)).collect();
    burst.send(&mut frames, 9).unwrap();
    device.settle();
    let failure = burst.sender.next().expect("a failure").unwrap_err();
    assert_eq!((failure.token, failure.status), (9, WcStatus::LOC_LEN_ERR));
    assert_eq!(failure.buffers.iter().map(|frame| frame.len()).collect::<Vec<_>>(), lens);
    drop(failure);
    assert_eq!(burst.pool.available(), 256);
    let mut frames = vec![burst.frame(100, 0)];
    let queue = burst.frames.send_queue().unwrap();
    let error = burst.sender.post_many(queue).map(|_| ()).unwrap_err();
    assert!(matches!(error, NotSent::State(_)), "{error}");
    frames.clear();
}

/// Frames of WQEs that never complete return when their queue ends.
#[test]
fn frames_outlive_their_queue() {
    for path in PATHS {
        let (device, _pd) = ethernet();
        let Burst { mut sender, frames: owner, pool } = Burst::new(&device, path, FrameConfig::new());
        let mut frames: Vec<_> = (0..50)
            .map(|at| {
                let mut buffer = pool.take().unwrap();
                buffer.extend_from_slice(&datagram(GROUP, 5, 100, at));
                buffer
            })
            .collect();
        let queue = owner.send_queue().unwrap();
        sender.post_many(queue).unwrap().send_frames(&mut frames, false).unwrap();
        assert_eq!(pool.available(), 206);
        drop((owner, sender));
        assert_eq!(pool.available(), 256);
    }
}
