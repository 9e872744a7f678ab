//! Destinations of frames: copies for several queues, one queue of several by hash, and loopback.

use super::*;
use crate::objects::rss::field;

#[test]
fn a_frame_is_copied_to_each_queue_of_its_rule() {
    let mut pair = Pair::new();
    let (mut a, mut b) = (pair.queue(2, |attr| attr), pair.queue(2, |attr| attr));
    pair.lead(&[a.number], Some(1));
    pair.lead(&[b.number], Some(1));
    a.post();
    b.post();
    let frame = feed(b"tick").build();
    pair.send(&frame);
    assert_eq!(pair.cq.drain().len(), 2);
    assert_eq!((a.received(0, 60), b.received(0, 60)), (frame.clone(), frame.clone()));
    // A queue without a WQE does not stop the other.
    b.post();
    pair.arrives(&frame);
}

#[test]
fn a_hash_picks_the_queue() {
    let mut pair = Pair::new();
    let mut queues: Vec<_> = (0..4).map(|_| pair.queue(64, |attr| attr)).collect();
    let numbers: Vec<_> = queues.iter().map(|queue| queue.number).collect();
    let hash = HashAttr { fields: field::SRC_IPV4 | field::DST_IPV4, key: [0x5a; 40] };
    let tir = pair.tir(&numbers, Some(hash));
    pair.device.nic.create_flow(&[rule(Target::Tir(tir), None)]).unwrap();
    queues.iter_mut().for_each(|queue| queue.post_many(40));
    let mut next = [0; 4];
    for last in 0..40 {
        let cqe = pair.arrives(&feed(b"tick").from([10, 0, 0, last], 7).build());
        assert_eq!(cqe.rx_hash_type, 0x05);
        let queue = cqe.rx_hash_result.get() as usize & 3;
        assert_eq!(cqe.wqe_counter.get(), next[queue], "the others got nothing");
        next[queue] += 1;
    }
    assert!(next.iter().all(|count| *count > 0), "{next:?}");
}

#[test]
fn own_frames_come_back_to_other_domains_only() {
    let switch = Switch::new();
    let mut device = Device::with(ethernet(&switch));
    let (send_cq, cq) = (device.cq(16), device.cq(16));
    let domain = |domain| move |attr| QpAttr { raw: RawAttr { domain, ..RawAttr::default() }, ..attr };
    let mut sender = raw_qp(&mut device, &send_cq, domain(1));
    let mut queues: Vec<_> = (0..3).map(|_| Queue::new(&mut device, &cq, 4, |attr| attr)).collect();
    let multicast = Loopback { multicast: true, unicast: false };
    for (queue, (domain, loopback)) in
        queues.iter_mut().zip([(1, Loopback::default()), (2, Loopback::default()), (1, multicast)])
    {
        let tir = TirAttr { domain, loopback, hash: None, queues: vec![queue.number] };
        let tir = device.nic.create_tir(tir).unwrap();
        device.nic.create_flow(&[rule(Target::Tir(tir), None)]).unwrap();
        queue.post();
        queue.post();
    }
    let memory = Memory::new(4096);
    let key = device.register(&memory, ALL_ACCESS);
    let mut send = |frame: &[u8], device: &mut Device| {
        memory.set(0, frame);
        let data = DataSegment::new(memory.addr(), frame.len() as u32, key).to_bytes();
        let work = Work::send().bytes(&EthSegment::zeroed().to_bytes()).bytes(&data);
        device.post(&mut sender, &work);
        device.settle();
    };
    let frame = feed(b"tick").build();
    send(&frame, &mut device);
    let taken = |device: &Device| device.nic.queues().wqs.iter().map(|wq| wq.receive_index).collect();
    let indices: Vec<u16> = taken(&device);
    // The first index is that of the queue pair's receive side.
    assert_eq!(indices, [0, 0, 1, 1]);
    let mut unicast = frame;
    unicast[0] = 0x02;
    send(&unicast, &mut device);
    let indices: Vec<u16> = taken(&device);
    assert_eq!(indices, [0, 0, 2, 1]);
}

#[test]
fn frames_for_a_port_go_there_and_others_to_all() {
    let switch = Switch::new();
    let mut devices: Vec<_> = (0..3).map(|_| Device::with(ethernet(&switch))).collect();
    let cqs: Vec<_> = devices.iter_mut().map(|device| device.cq(16)).collect();
    let mut queues = Vec::new();
    for (device, cq) in devices.iter_mut().zip(&cqs) {
        let mut queue = Queue::new(device, cq, 4, |attr| attr);
        let queues_of = vec![queue.number];
        let loopback = Loopback::default();
        let tir = TirAttr { domain: 1, loopback, hash: None, queues: queues_of };
        let tir = device.nic.create_tir(tir).unwrap();
        device.nic.create_flow(&[rule(Target::Tir(tir), None)]).unwrap();
        queue.post_many(4);
        queues.push(queue);
    }
    let mut sender =
        raw_qp(&mut devices[0], &cqs[0], |attr| QpAttr { raw: RawAttr { domain: 1, ..RawAttr::default() }, ..attr });
    let memory = Memory::new(4096);
    let key = devices[0].register(&memory, ALL_ACCESS);
    let third = devices[2].nic.port().mac;
    let indices = |devices: &[Device]| -> Vec<u16> {
        let last = |device: &Device| device.nic.queues().wqs[0].receive_index;
        devices.iter().map(last).collect()
    };
    for (to, expected) in [(None, [0, 1, 1]), (Some(third), [0, 1, 2]), (Some([2; 6]), [0, 2, 3])] {
        let mut frame = feed(b"tick").build();
        to.into_iter().for_each(|mac: [u8; 6]| frame[..6].copy_from_slice(&mac));
        memory.set(0, &frame);
        let data = DataSegment::new(memory.addr(), frame.len() as u32, key).to_bytes();
        let work = Work::send().bytes(&EthSegment::zeroed().to_bytes()).bytes(&data);
        devices[0].post(&mut sender, &work);
        devices.iter_mut().for_each(Device::settle);
        assert_eq!(indices(&devices), expected);
    }
}
