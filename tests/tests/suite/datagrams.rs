//! Datagrams: header and payload apart, and an answer to the sender.

use std::net::{Ipv4Addr, Ipv6Addr, UdpSocket};

use doorbell::{
    BufferPool, DatagramSource, Error, GRH_SIZE, MulticastGroup, NotSent, PoolConfig, ProtectionDomain, QpConfig,
    QueuePair, Receiver, RqConfig, SrqConfig, WcFlags, WcStatus,
};
use doorbell_tests::sending_qp::SendingQp;
use doorbell_tests::world::Single;
use doorbell_tests::{assert_matches, device, receiving};

const QKEY: u32 = 0x1234_5678;

/// A queue pair for datagrams, which receives.
struct End {
    qp: SendingQp,
    receiver: Receiver,
    pool: BufferPool,
}

impl End {
    fn new(pd: &ProtectionDomain, config: QpConfig, shared: bool) -> Self {
        let mut receiver = device::receiver(pd, 64);
        let pool = BufferPool::new(pd, &PoolConfig::new(64, 512)).unwrap();
        let config = config.max_inline(64);
        let qp = if shared {
            let srq = receiver.create_srq(&SrqConfig::new(15)).unwrap();
            receiver.fill(srq, &pool).unwrap();
            SendingQp::create(&mut receiver, &config, srq).unwrap()
        } else {
            let qp = SendingQp::create(&mut receiver, &config, RqConfig::new(16)).unwrap();
            receiver.fill(qp.receive_queue().unwrap(), &pool).unwrap();
            qp
        };
        let mut this = Self { qp, receiver, pool };
        this.qp.activate().unwrap();
        this
    }

    /// Takes a datagram; returns who sent it.
    fn take(&mut self, payload: &[u8], from: &QueuePair, global: bool) -> DatagramSource {
        let mut sender = None;
        let qp_num = self.qp.qp_num();
        receiving::messages(&mut self.receiver, 1, |message| {
            assert_eq!((message.qp_num(), message.len()), (qp_num, GRH_SIZE + payload.len()));
            assert_eq!(message.flags().contains(WcFlags::GRH), global);
            let datagram = message.datagram().expect("a datagram");
            assert_eq!(datagram.payload(), payload);
            assert_eq!(datagram.source().qp_num, from.qp_num());
            assert_eq!(datagram.grh().is_some(), global);
            sender = Some(datagram.sender());
        });
        sender.unwrap()
    }

    fn sent(&mut self) {
        assert_eq!(self.qp.ended(), WcStatus::SUCCESS);
    }
}

/// Whether packets to `qp` have a GRH.
fn is_global(qp: &QueuePair) -> bool {
    qp.address().unwrap().gid != [0; 16]
}

fn question_and_answer(config: &QpConfig, shared: bool) {
    let pd = device::pd();
    let mut one = End::new(&pd, config.clone(), shared);
    let mut other = End::new(&pd, config.clone(), shared);
    let global = is_global(&one.qp);
    let to = other.qp.address_handle(&one.qp.address().unwrap(), QKEY).unwrap();
    assert_eq!(to.qp_num(), one.qp.qp_num());
    for round in 0..100u8 {
        let question = vec![round; usize::from(round) % 64];
        other.qp.send_to(&question[..], &to, Some(7)).unwrap();
        other.sent();
        let sender = one.take(&question, &other.qp, global);

        // The handle may go before the answer is sent.
        let back = one.qp.reply_to(&sender).unwrap();
        assert_eq!(back.qp_num(), other.qp.qp_num());
        let mut answer = one.pool.take().unwrap();
        answer.set_len(300);
        answer.fill(!round);
        one.qp.send_to(answer, &back, None).unwrap();
        drop(back);
        one.sent();
        other.take(&[!round; 300], &one.qp, global);
    }
}

#[test]
fn a_question_is_answered() {
    for (config, shared) in [
        (QpConfig::ud(QKEY), false),
        (QpConfig::ud(QKEY), true),
        // With a global routing header.
        (QpConfig::ud(QKEY).gid_index(0), false),
    ] {
        println!("on an SRQ: {shared}, {config:?}");
        question_and_answer(&config, shared);
    }
}

/// The traffic class of a header: of an IPv6 header, or of the IPv4 header at its end.
fn traffic_class(grh: &[u8; GRH_SIZE]) -> u8 {
    if grh[20] >> 4 == 4 { grh[21] } else { grh[0] << 4 | grh[1] >> 4 }
}

#[test]
fn packets_are_of_the_traffic_class_that_was_asked_for() {
    const CLASS: u8 = 26 << 2;
    let pd = device::pd();
    let config = QpConfig::ud(QKEY);
    // On InfiniBand a GRH must be asked for.
    let config = match End::new(&pd, config.clone(), false).qp.address().unwrap().lid {
        0 => config,
        _ => config.gid_index(0),
    };
    let mut one = End::new(&pd, config.clone(), false);
    for class in [CLASS, 0] {
        let mut other = End::new(&pd, config.clone().traffic_class(class), false);
        let to = other.qp.address_handle(&one.qp.address().unwrap(), QKEY).unwrap();
        other.qp.send_to(b"classified", &to, None).unwrap();
        other.sent();
        receiving::messages(&mut one.receiver, 1, |message| {
            let datagram = message.datagram().unwrap();
            assert_eq!(traffic_class(datagram.grh().unwrap()), class);
        });
    }
}

#[test]
fn a_datagram_with_a_wrong_queue_key_is_dropped() {
    let pd = device::pd();
    let mut one = End::new(&pd, QpConfig::ud(QKEY), false);
    let mut other = End::new(&pd, QpConfig::ud(QKEY), false);
    let to = |qkey| other.qp.address_handle(&one.qp.address().unwrap(), qkey).unwrap();
    let (wrong, right) = (to(QKEY + 1), to(QKEY));
    other.qp.send_to(b"wrong", &wrong, None).unwrap();
    other.qp.send_to(b"right", &right, None).unwrap();
    let global = is_global(&one.qp);
    one.take(b"right", &other.qp, global);
    receiving::nothing(&mut one.receiver);
}

#[test]
fn what_datagrams_cannot_do_is_refused() {
    let mut w = Single::new(8, 64).filled();
    let pd = w.pd.clone();
    let mut end = End::new(&pd, QpConfig::ud(QKEY), false);
    let address = end.qp.address().unwrap();
    let to = end.qp.address_handle(&address, QKEY).unwrap();
    for result in [end.qp.connect(&address), w.near[0].activate()] {
        assert_matches!(result, Err(Error::Unsupported { .. }));
    }
    let refused = end.qp.send_inline(b"", None).unwrap_err();
    assert_matches!(refused, NotSent::Transport);
    assert!(refused.to_string().contains("send_to"), "{refused}");
    let refused = w.peers.qps[0].send_to(b"", &to, None).unwrap_err();
    assert!(matches!(refused, NotSent::Transport), "{refused}");

    let long = BufferPool::new(&pd, &PoolConfig::new(1, 8192)).unwrap();
    let mut buffer = long.take().unwrap();
    buffer.set_len(8192);
    let refused = end.qp.send_to(buffer, &to, None).unwrap_err();
    assert!(matches!(refused.reason, NotSent::TooLong { len: 8192, .. }), "{refused:?}");

    w.peers.send(0, 60);
    receiving::messages(&mut w.receiver, 1, |message| assert!(message.datagram().is_none()));
}

/// A group that the device under test takes. On Ethernet with a socket that is an ordinary member: a host that delivers
/// the copies by itself gives itself none otherwise.
fn group(qp: &QueuePair) -> (MulticastGroup, Option<UdpSocket>) {
    let address = qp.address().unwrap();
    let v6 = Ipv6Addr::new(0xff12, 0x401b, 0, 0, 0, 1, 2, 3);
    match Ipv6Addr::from(address.gid).to_ipv4_mapped() {
        _ if address.lid != 0 => (MulticastGroup { gid: v6.octets(), lid: 0xc123 }, None),
        None => (MulticastGroup::ip(v6.into()), None),
        Some(interface) => {
            let v4 = Ipv4Addr::new(239, 1, 2, 3);
            let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap();
            // The address of a software device need not be one of the host.
            let member = socket.join_multicast_v4(&v4, &interface).is_ok().then_some(socket);
            (MulticastGroup::ip(v4.into()), member)
        }
    }
}

#[test]
fn every_member_of_a_group_gets_a_copy_until_it_leaves() {
    let pd = device::pd();
    let ends = || End::new(&pd, QpConfig::ud(QKEY), false);
    let (mut one, mut other, mut sender) = (ends(), ends(), ends());
    let (group, _member) = group(&one.qp);
    let to = sender.qp.multicast_handle(&group, QKEY).unwrap();
    for end in [&mut one, &mut other] {
        end.qp.join(&group).unwrap();
        assert_matches!(end.qp.join(&group), Err(Error::AlreadyMember { .. }));
    }
    for round in 0..50u8 {
        let bytes = [round; 40];
        sender.qp.send_to(&bytes, &to, None).unwrap();
        sender.sent();
        for end in [&mut one, &mut other] {
            let from = end.take(&bytes, &sender.qp, true);
            assert_eq!(from.qp_num(), sender.qp.qp_num());
        }
    }
    other.qp.leave(&group).unwrap();
    assert_matches!(other.qp.leave(&group), Err(Error::NotMember { .. }));
    sender.qp.send_to(b"to one", &to, None).unwrap();
    sender.sent();
    one.take(b"to one", &sender.qp, true);
    receiving::nothing(&mut other.receiver);
    receiving::nothing(&mut sender.receiver);
}

/// A member of a group cannot be destroyed: its receives would stay with the device for ever.
#[test]
fn a_queue_pair_that_is_dropped_has_left_its_groups() {
    let pd = device::pd();
    for _ in 0..3 {
        let mut end = End::new(&pd, QpConfig::ud(QKEY), false);
        let (group, _member) = group(&end.qp);
        end.qp.join(&group).unwrap();
        let End { qp, receiver, pool } = end;
        assert!(pool.available() < pool.count() as usize);
        drop(receiver);
        drop(qp);
        assert_eq!(pool.available(), pool.count() as usize, "the queue pair was not destroyed");
    }
}

#[test]
fn joining_an_invalid_group_is_refused() {
    let mut w = Single::new(8, 64);
    let mut end = End::new(&w.pd, QpConfig::ud(QKEY), false);
    let (group, _member) = group(&end.qp);
    assert_matches!(w.near[0].join(&group).unwrap_err(), Error::Unsupported { .. });
    assert_matches!(w.near[0].multicast_handle(&group, QKEY), Err(Error::Unsupported { .. }));
    let unicast = MulticastGroup { gid: [0xfe; 16], ..group };
    let refused = end.qp.join(&unicast).unwrap_err();
    assert_matches!(refused, Error::NotMulticast { operation: "join", .. });
    assert!(refused.to_string().contains("is not a multicast address"), "{refused}");
    let refused = end.qp.multicast_handle(&unicast, QKEY);
    assert_matches!(refused, Err(Error::NotMulticast { .. }));
    let refused = end.qp.leave(&group).unwrap_err();
    assert_matches!(refused, Error::NotMember { .. });
    assert!(refused.to_string().contains("not a member of"), "{refused}");
    if group.lid != 0 {
        // On InfiniBand, nothing would go out without the LID.
        let refused = end.qp.join(&MulticastGroup { lid: 0, ..group }).unwrap_err();
        assert_matches!(refused, Error::OutOfRange { value: 0, min: 0xc000, .. });
        assert!(refused.to_string().contains("subnet manager"), "{refused}");
        let refused = end.qp.multicast_handle(&MulticastGroup { lid: 7, ..group }, QKEY);
        assert_matches!(refused, Err(Error::OutOfRange { value: 7, .. }));
    }
}

/// The address handle of another domain is refused, each time, and the queue goes on.
#[test]
fn an_address_handle_of_another_domain_is_refused() {
    let pd = device::pd();
    let other = pd.context().alloc_pd().unwrap();
    let mut near = End::new(&pd, QpConfig::ud(QKEY), false);
    let mut far = End::new(&pd, QpConfig::ud(QKEY), false);
    let stranger = End::new(&other, QpConfig::ud(QKEY), false);
    let address = far.qp.address().unwrap();
    let own = near.qp.address_handle(&address, QKEY).unwrap();
    let foreign = stranger.qp.address_handle(&address, QKEY).unwrap();
    let global = is_global(&near.qp);
    for _ in 0..2 {
        let refused = near.qp.send_to(b"bytes", &foreign, None).unwrap_err();
        assert_matches!(refused, NotSent::WrongDomain);
        let mut buffer = near.pool.take().unwrap();
        buffer.extend_from_slice(b"buffer");
        let refused = near.qp.send_to(buffer, &foreign, Some(1)).unwrap_err();
        assert_matches!(refused.reason, NotSent::WrongDomain);
        near.qp.send_to(refused.payload, &own, None).unwrap();
        near.sent();
        far.take(b"buffer", &near.qp, global);
    }
}
