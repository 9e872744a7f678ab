//! One device, and all its queried properties.

use doorbell::{Context, DataPath, Mtu};
use serde::Serialize;

use super::names;
use crate::process::Process;
use crate::sysfs;

/// A device. Without `error` all the rest is true.
#[derive(Default, Serialize)]
pub struct Device {
    pub name: String,
    /// Why it could not be queried.
    pub error: Option<String>,
    /// The kernel driver; `None` for a device without one, such as soft-mlx5.
    pub driver: Option<String>,
    /// Address of the PCI function, for example `0000:3b:00.0`.
    pub pci: Option<String>,
    /// Its name by the owner or the driver.
    pub description: Option<String>,
    pub firmware: Option<String>,
    pub board: Option<String>,
    pub vendor_id: u32,
    pub part_id: u32,
    /// NUMA node, `None` where the system has only one or does not report it.
    pub numa_node: Option<u32>,
    /// The path that `DataPath::Auto` takes: `direct` or `verbs`.
    pub path: String,
    /// Why not the direct one.
    pub not_direct: Option<String>,
    pub ports: Vec<Port>,
    pub tag_matching: Option<TagMatching>,
    pub cqe_compression: Option<CqeCompression>,
    pub timestamps: Option<Timestamps>,
    pub limits: Limits,
    /// Things to look after.
    pub warnings: Vec<String>,
}

#[derive(Serialize)]
pub struct Port {
    pub number: u8,
    pub state: String,
    pub link_layer: String,
    /// Rate in Gb/s and its name, for example `4x EDR`; `None` for a code that is not known.
    pub gigabits: Option<f64>,
    pub speed: Option<String>,
    /// Bytes of payload of a packet.
    pub active_mtu: Option<u32>,
    pub max_mtu: Option<u32>,
    /// Bytes of the longest message.
    pub max_message: u32,
    pub lid: u16,
    pub gids: Vec<Gid>,
}

#[derive(Serialize)]
pub struct Gid {
    pub index: u32,
    pub gid: String,
    pub kind: String,
}

#[derive(Serialize)]
pub struct TagMatching {
    pub max_tags: u32,
    pub max_operations: u32,
    pub max_sge: u32,
    /// Bytes.
    pub max_rendezvous_header: u32,
    pub rc: bool,
}

#[derive(Serialize)]
pub struct CqeCompression {
    /// Completions of one block.
    pub max_completions: u32,
    pub formats: Vec<&'static str>,
    pub cqe_128: bool,
}

#[derive(Serialize)]
pub struct Timestamps {
    pub bits: u32,
    pub clock_khz: u64,
    pub real_time: bool,
}

#[derive(Default, Serialize)]
pub struct Limits {
    pub qps: u32,
    /// Receives or sends of a queue pair, and buffers of each.
    pub qp_wr: u32,
    pub qp_sge: u32,
    pub srqs: u32,
    pub srq_wr: u32,
    pub srq_sge: u32,
    pub cqs: u32,
    pub cqe: u32,
    /// Interrupts that CQs can share out among themselves.
    pub comp_vectors: u32,
    /// Bytes.
    pub mr_size: u64,
}

impl Device {
    pub fn query(device: &doorbell::Device, process: &Process) -> Self {
        let mut this = Self { name: device.name().to_owned(), ..Self::default() };
        let asked = device.open().and_then(|context| this.ask(&context, process));
        this.error = asked.err().map(|error| error.to_string());
        this
    }

    fn ask(&mut self, context: &Context, process: &Process) -> doorbell::Result<()> {
        let attr = context.attr();
        self.identify(context);
        let (path, reason) = context.auto_path();
        self.path = path.to_string();
        self.not_direct = reason.map(|reason| reason.to_string());

        let gids = context.gids();
        for number in 1..=attr.phys_port_cnt {
            let of_port = |gid: &&doorbell::Gid| gid.port == u32::from(number);
            self.ports.push(port(context, number, gids.iter().filter(of_port))?);
        }

        let caps = context.capabilities()?;
        self.tag_matching = caps.tag_matching.map(|caps| TagMatching {
            max_tags: caps.max_num_tags,
            max_operations: caps.max_ops,
            max_sge: caps.max_sge,
            max_rendezvous_header: caps.max_rndv_hdr_size,
            rc: caps.rc,
        });
        self.cqe_compression = caps.cqe_compression.map(|caps| CqeCompression {
            max_completions: caps.max_num,
            formats: [
                (caps.hash, "hash"),
                (caps.checksum, "checksum"),
                (caps.checksum_stride_index, "checksum and stride index"),
            ]
            .into_iter()
            .filter_map(|(has, name)| has.then_some(name))
            .collect(),
            cqe_128: caps.cqe_128,
        });
        self.timestamps = caps.timestamps.map(|caps| Timestamps {
            bits: caps.mask.count_ones(),
            clock_khz: caps.clock_khz,
            real_time: caps.real_time,
        });
        self.limits = Limits {
            qps: attr.max_qp,
            qp_wr: attr.max_qp_wr,
            qp_sge: attr.max_sge,
            srqs: attr.max_srq,
            srq_wr: attr.max_srq_wr,
            srq_sge: attr.max_srq_sge,
            cqs: attr.max_cq,
            cqe: attr.max_cqe,
            comp_vectors: context.num_comp_vectors(),
            mr_size: attr.max_mr_size,
        };
        self.warnings = self.warnings(path, process);
        Ok(())
    }

    fn identify(&mut self, context: &Context) {
        let dir = context.sysfs_path();
        self.driver = sysfs::link(&dir.join("device/driver"));
        self.pci = sysfs::link(&dir.join("device"));
        self.description = sysfs::read(&dir.join("node_desc"));
        self.board = sysfs::read(&dir.join("board_id"));
        // -1 where there is one node only.
        self.numa_node = sysfs::read(&dir.join("device/numa_node")).and_then(|n| n.parse().ok());
        self.firmware = Some(context.firmware()).filter(|version| !version.is_empty());
        self.vendor_id = context.attr().vendor_id;
        self.part_id = context.attr().vendor_part_id;
    }

    fn warnings(&self, path: DataPath, process: &Process) -> Vec<String> {
        let mut warnings = Vec::new();
        // On a device that is not mlx5 there is nothing to be done about the path.
        if let (DataPath::Verbs, Some(reason), true) = (path, &self.not_direct, self.is_mlx5()) {
            warnings.push(format!("an mlx5 device that is not driven directly: {reason}"));
        }
        for port in self.ports.iter().filter(|port| port.state != "active") {
            warnings.push(format!("port {} is {}: nothing is sent or received on it", port.number, port.state));
        }
        warnings.extend(self.numa_node.and_then(|node| process.numa_warning(node)));
        warnings
    }

    fn is_mlx5(&self) -> bool {
        self.name.starts_with("mlx5") || self.driver.as_deref() == Some("mlx5_core")
    }
}

fn port<'a>(context: &Context, number: u8, gids: impl Iterator<Item = &'a doorbell::Gid>) -> doorbell::Result<Port> {
    let attr = context.query_port(number)?;
    let link = names::link(&attr);
    Ok(Port {
        number,
        state: attr.state.to_string(),
        link_layer: attr.link_layer.to_string(),
        gigabits: link.as_ref().map(|(_, rate)| *rate),
        speed: link.map(|(name, _)| name),
        active_mtu: attr.active_mtu.map(Mtu::bytes),
        max_mtu: attr.max_mtu.map(Mtu::bytes),
        max_message: attr.max_msg_sz,
        lid: attr.lid,
        gids: gids.map(|gid| Gid { index: gid.index, gid: gid.to_string(), kind: names::gid_kind(gid.kind) }).collect(),
    })
}
