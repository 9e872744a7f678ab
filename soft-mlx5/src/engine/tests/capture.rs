//! The capture file, as tshark understands it.

use std::process::Command;

use mlx5_wire::data::DataSegment;
use mlx5_wire::opcode::WqeOpcode;
use mlx5_wire::remote::AtomicSegment;

use super::program::*;
use crate::base::run_dir::{RunDir, fresh_path};
use crate::engine::NicConfig;
use crate::fabric::{LinkLayer, address, pcap};
use crate::objects::*;

// Returns the fields of each packet.
fn tshark(path: &std::path::Path, fields: &[&str]) -> Vec<Vec<String>> {
    let mut command = Command::new("tshark");
    // tshark takes any payload for RPC over RDMA.
    let options = ["--disable-protocol", "rpcordma", "-o", "udp.check_checksum:TRUE"];
    command.arg("-r").arg(path).args(options).args(["-T", "fields"]);
    for field in fields {
        command.args(["-e", field]);
    }
    let output = command.output().expect("tshark, which scripts/setup.sh installs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().map(|line| line.split('\t').map(str::to_owned).collect()).collect()
}

#[test]
fn tshark_decodes_every_operation_without_complaint() {
    let dir = RunDir::create(fresh_path("test")).unwrap();
    let path = dir.path().join("capture");
    pcap::create(&path).unwrap();
    let config = NicConfig { pcap: Some(path.clone()), ..NicConfig::default() };
    let mut device = Device::with(config);
    let (mut send, recv) = (device.cq(64), device.cq(64));
    let (mut a, mut b) = device.pair(|attr| attr, &send, &recv);
    let memory = Memory::new(8192);
    let key = device.register(&memory, ALL_ACCESS);
    let at = memory.addr();
    for _ in 0..3 {
        b.post_receive(&[DataSegment::new(at, 4096, key)]);
    }
    let operands = AtomicSegment { swap_add: 5.into(), compare: 7.into() }.to_bytes();
    let to_remote = |opcode| Work::new(opcode).remote(at, key);
    let all = [
        Work::send().inline(b"odd"),
        Work::new(WqeOpcode::SEND_IMM).imm(9).data(at + 4096, 3000, key),
        to_remote(WqeOpcode::RDMA_WRITE).data(at + 4096, 1025, key),
        to_remote(WqeOpcode::RDMA_WRITE_IMM).imm(9).data(at + 4096, 5, key),
        to_remote(WqeOpcode::RDMA_READ).data(at + 4096, 2049, key),
        to_remote(WqeOpcode::ATOMIC_CS).bytes(&operands).data(at + 4096, 8, key),
        to_remote(WqeOpcode::ATOMIC_FA).bytes(&operands).data(at + 4096, 8, key),
    ];
    for work in &all {
        device.post(&mut a, work);
        device.settle();
    }
    assert_eq!(send.drain().len(), all.len());
    let fields = [
        "infiniband.bth.opcode",
        "infiniband.bth.destqp",
        "udp.checksum.status",
        "_ws.expert.message",
        "_ws.malformed",
    ];
    let packets = tshark(&path, &fields);
    let opcodes: Vec<u8> = packets.iter().map(|packet| packet[0].parse().unwrap()).collect();
    assert_eq!(
        opcodes,
        [4, 17, 0, 1, 3, 17, 6, 8, 17, 11, 17, 12, 13, 14, 15, 19, 18, 20, 18],
        "opcodes of the InfiniBand specification, table 38"
    );
    for packet in &packets {
        assert!(packet[1] == "0x000040" || packet[1] == "0x000041", "{packet:?}");
        assert_eq!(packet[2], "1", "the checksum is good: {packet:?}");
        assert_eq!(packet[3..], ["", ""], "{packet:?}");
    }
}

#[test]
fn tshark_decodes_both_versions_of_roce() {
    let dir = RunDir::create(fresh_path("test")).unwrap();
    for (index, layers) in [
        (0, "eth:ethertype:infiniband"),
        (1, "eth:ethertype:ipv6:udp:infiniband"),
        (2, "eth:ethertype:infiniband"),
        (3, "eth:ethertype:ip:udp:infiniband"),
    ] {
        let path = dir.path().join(format!("capture-{index}"));
        pcap::create(&path).unwrap();
        let link_layer = LinkLayer::Ethernet;
        let config = NicConfig { pcap: Some(path.clone()), link_layer, ..NicConfig::default() };
        let mut device = Device::with(config);
        let (mut send, recv) = (device.cq(64), device.cq(64));
        let (mut a, b) = device.pair(|attr| attr, &send, &recv);
        let (_, dgid) = address::table_entry(1, link_layer, index).unwrap();
        let sgid_index = index as u8;
        let grh = Grh { dgid, sgid_index, flow_label: 0, hop_limit: 64, traffic_class: 0 };
        for qp in [&a, &b] {
            let av = AddressVector { grh: Some(grh), ..AddressVector::default() };
            device.modify(qp, QpModify { av: Some(av), ..QpModify::default() });
        }
        let memory = Memory::new(64);
        let key = device.register(&memory, ALL_ACCESS);
        let write = Work::new(WqeOpcode::RDMA_WRITE).remote(memory.addr(), key);
        device.post(&mut a, &write.inline(b"payload"));
        device.settle();
        assert_eq!(send.drain().len(), 1);
        let fields = ["infiniband.bth.opcode", "frame.protocols", "_ws.expert.message", "_ws.malformed"];
        let packets = tshark(&path, &fields);
        assert_eq!(packets.len(), 2);
        for (packet, opcode) in packets.iter().zip(["10", "17"]) {
            assert_eq!(packet[..2], [opcode, &format!("{layers}{}", if opcode == "10" { ":data" } else { "" })]);
            assert_eq!(packet[2..], ["", ""], "{packet:?}");
        }
    }
}
