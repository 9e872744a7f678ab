//! UD: datagrams with a GRH in front, queue keys, multicast.

use mlx5_wire::data::DataSegment;
use mlx5_wire::datagram::{DatagramSegment, EXTENDED_UD_AV, GRH_PRESENT};
use mlx5_wire::opcode::CqeOpcode;

use super::program::*;
use crate::engine::NicConfig;
use crate::fabric::{LinkLayer, address};
use crate::objects::*;

const QKEY: u32 = 0x1111_1111;

fn datagram_qp(device: &mut Device, send: &Cq, recv: &Cq) -> Qp {
    let attr = device.qp_attr(Service::Ud, send, recv);
    make_ready(device, attr)
}

fn make_ready(device: &mut Device, attr: QpAttr) -> Qp {
    let qp = device.qp(attr);
    let ready = [QpState::Init, QpState::Rtr, QpState::Rts];
    for state in ready {
        let change = QpModify { state: Some(state), qkey: Some(QKEY), ..QpModify::default() };
        device.modify(&qp, change);
    }
    qp
}

fn setup_with(config: NicConfig) -> Setup {
    Setup::with(Device::with(config), 64, |device, send, recv| [(); 2].map(|()| datagram_qp(device, send, recv)).into())
}

fn to(qpn: u32, dlid: u16, dgid: Option<[u8; 16]>, qkey: u32) -> [u8; 48] {
    let mut segment = DatagramSegment::zeroed();
    segment.qkey = qkey.into();
    segment.dqp_dct = (EXTENDED_UD_AV | qpn).into();
    segment.rlid = dlid.into();
    segment.stat_rate_sl = 3;
    if let Some(dgid) = dgid {
        segment.grh_gid_fl = (GRH_PRESENT | 0x12345).into();
        segment.rgid = dgid;
        segment.hop_limit = 9;
        segment.tclass = 0x20;
    }
    segment.to_bytes()
}

#[test]
fn the_grh_names_the_source() {
    use LinkLayer::{Ethernet, InfiniBand};
    for (link_layer, index) in [(InfiniBand, 0), (Ethernet, 0), (Ethernet, 1), (Ethernet, 2), (Ethernet, 3)] {
        let mut s = setup_with(NicConfig { link_layer, ..NicConfig::default() });
        s.receive(1024);
        s.memory.set(0, &[0xee; 40]);
        // On Ethernet the LID field holds something else.
        let dlid = if link_layer == Ethernet { 0xc123 } else { 1 };
        let (gid_type, gid) = address::table_entry(1, link_layer, index).unwrap();
        let mut segment = DatagramSegment::from_bytes(&to(s.b.number.0, dlid, Some(gid), QKEY));
        segment.grh_gid_fl = (segment.grh_gid_fl.get() | index << 20).into();
        s.device.post(&mut s.a, &Work::send().bytes(&segment.to_bytes()).inline(b"x"));
        s.device.settle();
        let cqe = s.recv.expect(CqeOpcode::ResponderSend, &s.b, 0);
        assert!(cqe.has_grh());
        let sl = if link_layer == Ethernet { [0, 9, 0, 10][index as usize] } else { 3 };
        assert_eq!(cqe.sl(), sl, "the type of the packet");
        let grh = s.memory.get(0, 40);
        // One byte padded to four, and the ICRC.
        const TRANSPORT: u8 = 12 + 8 + 4 + 4;
        if index == 3 {
            assert_eq!(grh[..20], [0xee; 20], "these bytes are undefined");
            assert_eq!(grh[20..30], [0x45, 0x20, 0, 20 + 8 + TRANSPORT, 0, 0, 0x40, 0, 9, 17]);
            assert_eq!((&grh[32..36], &grh[36..]), (&gid[12..], &gid[12..]));
            continue;
        }
        assert_eq!(grh[..4], [0x62, 0x01, 0x23, 0x45]);
        // The next header is a base transport header on InfiniBand and with RoCE v1, UDP with v2.
        let (next, udp) = if gid_type == address::GidType::RoceV2 { (17, 8) } else { (0x1b, 0) };
        assert_eq!(grh[4..8], [0, udp + TRANSPORT, next, 9], "{index}");
        assert_eq!((&grh[8..24], &grh[24..]), (&gid[..], &gid[..]));
    }
}

#[test]
fn what_does_not_fit_is_dropped_and_takes_no_receive() {
    let mut s = setup_with(NicConfig::default());
    let counter = s.receive(50);
    let b = s.b.number.0;
    s.device.post(&mut s.a, &Work::send().bytes(&to(b, 1, None, QKEY + 1)).inline(b"bad key"));
    s.device.post(&mut s.a, &Work::send().bytes(&to(b, 1, None, QKEY)).inline(b"eleven long"));
    s.device.post(&mut s.a, &Work::send().bytes(&to(b + 9, 1, None, QKEY)).inline(b"nobody"));
    s.device.post(&mut s.a, &Work::send().bytes(&to(b, 77, None, QKEY)).inline(b"nowhere"));
    s.device.settle();
    s.recv.expect_nothing();
    s.device.post(&mut s.a, &Work::send().bytes(&to(b, 1, None, QKEY)).inline(b"ten bytes!"));
    s.device.settle();
    let cqe = s.recv.expect(CqeOpcode::ResponderSend, &s.b, counter);
    assert_eq!(cqe.byte_cnt.get(), 50);
    assert_eq!(s.send.drain().len(), 5);
}

#[test]
fn a_privileged_queue_key_stands_for_the_senders_own() {
    let mut s = setup_with(NicConfig::default());
    s.receive(100);
    let work = Work::send().bytes(&to(s.b.number.0, 1, None, 0x8000_0000));
    s.device.post(&mut s.a, &work);
    s.device.settle();
    s.recv.expect(CqeOpcode::ResponderSend, &s.b, 0);
}

#[test]
fn a_datagram_longer_than_the_mtu_stops_the_send_queue_only() {
    let mut s = setup_with(NicConfig::default());
    let av = to(s.b.number.0, 1, None, QKEY);
    let work = Work::send().bytes(&av).data(s.memory.addr(), 4097, s.key);
    s.device.post(&mut s.a, &work);
    s.device.settle();
    s.send.expect_error(CqeOpcode::RequesterError, &s.a, 0, 0x01);
    assert_eq!(s.device.state(&s.a), QpState::Sqe);
    s.device.set_state(&s.a, QpState::Rts);
    s.receive(100);
    let index = s.device.post(&mut s.a, &Work::send().bytes(&av));
    s.device.settle();
    s.send.expect(CqeOpcode::Requester, &s.a, index);
    s.recv.expect(CqeOpcode::ResponderSend, &s.b, 0);
}

#[test]
fn a_sender_may_be_spared_its_own_multicast() {
    let mut group = [0; 16];
    (group[0], group[1], group[15]) = (0xff, 0x12, 0x77);
    for block_multicast_loopback in [false, true] {
        let mut s = setup_with(NicConfig::default());
        let attr = s.device.qp_attr(Service::Ud, &s.send, &s.recv);
        let sender = make_ready(&mut s.device, QpAttr { block_multicast_loopback, ..attr });
        // The queues of the sender before still belong to the device.
        let _before = std::mem::replace(&mut s.a, sender);
        for qp in [&mut s.a, &mut s.b] {
            s.device.nic.attach_multicast(qp.number, group).unwrap();
            qp.post_receive(&[DataSegment::new(s.memory.addr(), 100, s.key)]);
        }
        let work = Work::send().bytes(&to(0xff_ffff, 0xc001, Some(group), QKEY)).inline(b"all");
        s.device.post(&mut s.a, &work);
        s.device.settle();
        let receivers = s.recv.drain().len();
        assert_eq!(receivers, if block_multicast_loopback { 1 } else { 2 });
    }
}

#[test]
fn a_driver_sets_source_addresses_and_names_destinations_by_mac() {
    let mut s = setup_with(NicConfig { link_layer: LinkLayer::Ethernet, ..NicConfig::default() });
    let mut gid = [0; 16];
    gid[10..].copy_from_slice(&[0xff, 0xff, 192, 0, 2, 1]);
    s.device.nic.gids().set(7, Some((address::GidType::RoceV2, gid)));
    let send = |s: &mut Setup, index: u32, dgid: [u8; 16], mac: [u8; 6]| {
        s.receive(100);
        let mut segment = DatagramSegment::from_bytes(&to(s.b.number.0, 0, Some(dgid), QKEY));
        segment.grh_gid_fl = (GRH_PRESENT | index << 20).into();
        segment.rmac = mac;
        s.device.post(&mut s.a, &Work::send().bytes(&segment.to_bytes()).inline(b"x"));
        s.device.settle();
        s.recv.drain().len()
    };
    // The device's own address, an address that only the MAC address leads to, and an address that nothing leads to.
    assert_eq!(send(&mut s, 7, gid, [0; 6]), 1);
    assert_eq!(s.memory.get(32, 4), [192, 0, 2, 1]);
    let mut foreign = gid;
    foreign[15] = 9;
    assert_eq!(send(&mut s, 7, foreign, address::mac(1)), 1);
    assert_eq!(s.memory.get(36, 4), [192, 0, 2, 9]);
    assert_eq!(send(&mut s, 7, foreign, [0; 6]), 0);
    // An empty entry is no source.
    assert_eq!(send(&mut s, 3, gid, [0; 6]), 0);
    s.device.nic.gids().set(7, None);
    assert_eq!(send(&mut s, 7, gid, [0; 6]), 0);
    s.device.nic.gids().forget();
    assert_eq!(send(&mut s, 3, address::gid(1), [0; 6]), 1);
}
