//! The sysfs tree in which libibverbs finds devices.
//!
//! libibverbs looks below one root only (`SYSFS_PATH`), so the tree also links the entries of the real one. As
//! there, the entries of a class are links into the directory of the PCI device. Programs find the kind of
//! adapter there, by the real path.

use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use crate::fabric::LinkLayer;
use crate::fabric::address::{GidType, table_entry};
use crate::kernel::limits;
use crate::netdev;
use crate::nic::PortAddress;

const REAL: &str = "/sys";
const EMPTY_GID: &str = "0000:0000:0000:0000:0000:0000:0000:0000\n";
const EMPTY_PKEY: &str = "0x0000\n";
/// Classes that list devices, below the root.
pub const CLASSES: [&str; 2] = ["class/infiniband", "class/infiniband_verbs"];

/// Directory of the PCI functions, below the root. The real one has none of this name.
pub const DEVICES: &str = "devices/soft-mlx5";

/// A root of our own.
#[derive(Debug)]
pub struct Tree {
    root: PathBuf,
}

/// Names of a device in a tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Names {
    /// `mlx5_0`.
    pub ibdev: String,
    /// Number of the uverbs device.
    pub uverbs: u32,
}

impl Tree {
    /// Makes the root with links to all real devices.
    pub fn create(root: &Path) -> io::Result<Self> {
        Self::beside(root, Path::new(REAL))
    }

    fn beside(root: &Path, real: &Path) -> io::Result<Self> {
        for class in CLASSES {
            fs::create_dir_all(root.join(class))?;
            let Ok(entries) = fs::read_dir(real.join(class)) else { continue };
            for entry in entries.flatten() {
                let link = root.join(class).join(entry.file_name());
                if let Err(error) = symlink(entry.path(), link) {
                    if error.kind() != io::ErrorKind::AlreadyExists {
                        return Err(error);
                    }
                }
            }
        }
        let version = root.join("class/infiniband_verbs/abi_version");
        if !version.exists() {
            fs::write(version, "6\n")?;
        }
        // The connection manager's file: librdmacm looks for its version here.
        let misc = root.join("class/misc/rdma_cm/abi_version");
        if !misc.exists() {
            write(&misc, "4")?;
        }
        Ok(Self { root: root.into() })
    }

    /// Names a tree that exists already.
    pub fn at(root: &Path) -> Self {
        Self { root: root.into() }
    }

    #[cfg(test)]
    fn root(&self) -> &Path {
        &self.root
    }

    /// Returns names that no device has yet, or the wanted one.
    pub fn free_names(&self, wanted: Option<&str>) -> io::Result<Names> {
        let taken = |class: &str, name: &str| {
            fs::symlink_metadata(self.root.join(class).join(name)).is_ok()
        };
        let free = |class: &'static str, stem: &'static str| {
            (0..).find(move |n| !taken(class, &format!("{stem}{n}"))).expect("numbers do not end")
        };
        let ibdev = match wanted {
            None => format!("mlx5_{}", free(CLASSES[0], "mlx5_")),
            Some(name) if !is_device_name(name) => {
                let what = format!("`{name}` cannot be the name of a device");
                return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
            }
            Some(name) if taken(CLASSES[0], name) => {
                let what = format!("there is a device `{name}` already");
                return Err(io::Error::new(io::ErrorKind::AlreadyExists, what));
            }
            Some(name) => name.into(),
        };
        Ok(Names { ibdev, uverbs: free(CLASSES[1], "uverbs") })
    }

    /// Adds a device.
    pub fn add(
        &self,
        names: &Names,
        dev: &str,
        port: &PortAddress,
        link: LinkLayer,
    ) -> io::Result<()> {
        let pci = self.pci(names);
        let device = pci.join("infiniband").join(&names.ibdev);
        let guid = grouped(&port.guid.to_be_bytes());
        let [major, minor, sub] = limits::FW_VERSION;
        let mut files: Vec<(String, String)> = [
            ("node_type", "1: CA".into()),
            ("node_guid", guid.clone()),
            ("sys_image_guid", guid),
            ("node_desc", format!("soft-mlx5 {}", names.ibdev)),
            ("fw_ver", format!("{major}.{minor}.{sub:04}")),
            ("hca_type", "MT4121".into()),
            ("hw_rev", "0".into()),
            ("board_id", "MT_0000000008".into()),
        ]
        .map(|(name, value): (&str, String)| (name.into(), value))
        .into();
        files.extend(port_files(port, link));
        for (name, value) in files {
            write(&device.join(name), &value)?;
        }
        for (name, value) in PCI_FILES {
            write(&pci.join(name), value)?;
        }
        let gids = match link {
            LinkLayer::InfiniBand => limits::GIDS_INFINIBAND,
            LinkLayer::Ethernet => limits::GIDS_ETHERNET,
        };
        for (table, entries) in [("gids", gids), ("pkeys", limits::PKEYS.into())] {
            let table = device.join("ports/1").join(table);
            // All empty entries are one file: links are made faster.
            let entry = |index: u32| table.join(index.to_string());
            let first = (0..entries).find(|index| !entry(*index).exists()).unwrap_or(0);
            fs::write(entry(first), if table.ends_with("gids") { EMPTY_GID } else { EMPTY_PKEY })?;
            for index in first + 1..entries {
                fs::hard_link(entry(first), entry(index))?;
            }
        }
        let verbs = pci.join("infiniband_verbs").join(uverbs_name(names));
        write(&verbs.join("ibdev"), &names.ibdev)?;
        write(&verbs.join("dev"), dev)?;
        write(&verbs.join("abi_version"), "1")?;
        for (class, entry) in CLASSES.into_iter().zip([&device, &verbs]) {
            symlink("../..", entry.join("device"))?;
            let name = entry.file_name().unwrap_or_default();
            let inside = entry.strip_prefix(&self.root).unwrap_or(entry);
            symlink(Path::new("../..").join(inside), self.root.join(class).join(name))?;
        }
        Ok(())
    }

    /// Returns the GUID that libibverbs reads for a device.
    pub fn node_guid(&self, names: &Names) -> Option<u64> {
        let file = self.root.join(CLASSES[0]).join(&names.ibdev).join("node_guid");
        let digits: String =
            fs::read_to_string(file).ok()?.chars().filter(char::is_ascii_hexdigit).collect();
        u64::from_str_radix(&digits, 16).ok()
    }

    /// Shows that the port came up or went down.
    pub fn show_port(&self, names: &Names, up: bool) {
        let pci = self.pci(names);
        let port = pci.join("infiniband").join(&names.ibdev).join("ports/1");
        for (name, value) in port_state(up) {
            // A concurrent reader finds the old state or the new one. A device that was just removed has no directory
            // for the state.
            let draft = pci.join("draft");
            let _ = fs::write(&draft, format!("{value}\n"))
                .and_then(|()| fs::rename(&draft, port.join(name)));
        }
    }

    /// Takes a device out again.
    pub fn remove(&self, names: &Names) {
        for (class, name) in CLASSES.into_iter().zip([&names.ibdev, &uverbs_name(names)]) {
            let _ = fs::remove_file(self.root.join(class).join(name));
        }
        let _ = fs::remove_dir_all(self.pci(names));
    }

    fn pci(&self, names: &Names) -> PathBuf {
        // Names of devices are unique in the tree, and so are the numbers of uverbs devices.
        let (bus, function) = (0x80 + names.uverbs / 8, names.uverbs % 8);
        self.root.join(DEVICES).join(format!("0000:{bus:02x}:00.{function}"))
    }
}

/// A ConnectX-5 Ex in a slot of the fourth generation.
const PCI_FILES: [(&str, &str); 8] = [
    ("modalias", "pci:v000015B3d00001019sv000015B3sd00000008bc02sc07i00"),
    ("vendor", "0x15b3"),
    ("device", "0x1019"),
    ("subsystem_vendor", "0x15b3"),
    ("subsystem_device", "0x0008"),
    ("numa_node", "-1"),
    ("current_link_width", "16"),
    ("current_link_speed", "16.0 GT/s PCIe"),
];

fn uverbs_name(names: &Names) -> String {
    format!("uverbs{}", names.uverbs)
}

fn port_state(up: bool) -> [(&'static str, &'static str); 2] {
    if up {
        [("state", "4: ACTIVE"), ("phys_state", "5: LinkUp")]
    } else {
        [("state", "1: DOWN"), ("phys_state", "3: Disabled")]
    }
}

fn port_files(port: &PortAddress, link: LinkLayer) -> Vec<(String, String)> {
    let ethernet = link == LinkLayer::Ethernet;
    let lid = if ethernet { 0 } else { port.lid };
    let mut files: Vec<(String, String)> = vec![
        ("rate".into(), "100 Gb/sec (4X EDR)".into()),
        ("link_layer".into(), if ethernet { "Ethernet" } else { "InfiniBand" }.into()),
        ("lid".into(), format!("{lid:#x}")),
        ("lid_mask_count".into(), "0".into()),
        ("sm_lid".into(), if ethernet { "0x0" } else { "0x1" }.into()),
        ("sm_sl".into(), "0".into()),
        ("pkeys/0".into(), format!("{:#06x}", limits::DEFAULT_PKEY)),
    ];
    files.extend(port_state(port.up).map(|(name, value)| (name.into(), value.into())));
    // Attributes of empty entries cannot be read, which means the same as their absence.
    for (index, (gid_type, gid)) in
        (0..).map_while(|index| Some((index, table_entry(port.lid, link, index)?)))
    {
        let named = if gid_type == GidType::RoceV2 { "RoCE v2" } else { "IB/RoCE v1" };
        files.push((format!("gids/{index}"), grouped(&gid)));
        files.push((format!("gid_attrs/types/{index}"), named.into()));
        if ethernet {
            files.push((format!("gid_attrs/ndevs/{index}"), netdev::name()));
        }
    }
    files.into_iter().map(|(name, value)| (format!("ports/1/{name}"), value)).collect()
}

fn write(path: &Path, value: &str) -> io::Result<()> {
    let text = format!("{value}\n");
    match fs::write(path, &text) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            fs::create_dir_all(path.parent().unwrap_or(path))?;
            fs::write(path, &text)
        }
        done => done,
    }
}

// "fe80:0000:..", as sysfs shows GIDs and GUIDs.
fn grouped(bytes: &[u8]) -> String {
    let groups = bytes.chunks(2).map(|pair| format!("{:02x}{:02x}", pair[0], pair[1]));
    groups.collect::<Vec<_>>().join(":")
}

fn is_device_name(name: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    (1..64).contains(&name.len()) && name.bytes().all(fits)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run_dir::{RunDir, fresh_path};

    fn port() -> PortAddress {
        let (_, gid) = table_entry(7, LinkLayer::InfiniBand, 0).unwrap();
        PortAddress { lid: 7, gid, guid: 0x0102_0304_0506_0708, mac: [0; 6], up: true }
    }

    #[test]
    fn real_devices_stay_visible_and_keep_their_names() {
        let dir = RunDir::create(fresh_path("test")).unwrap();
        let real = dir.path().join("real");
        fs::create_dir_all(real.join("class/infiniband/mlx5_0")).unwrap();
        fs::create_dir_all(real.join("class/infiniband_verbs/uverbs0")).unwrap();
        fs::write(real.join("class/infiniband_verbs/uverbs0/ibdev"), "mlx5_0\n").unwrap();
        fs::write(real.join("class/infiniband_verbs/abi_version"), "6\n").unwrap();
        let tree = Tree::beside(&dir.path().join("fake"), &real).unwrap();
        let through = tree.root().join("class/infiniband_verbs/uverbs0/ibdev");
        assert_eq!(fs::read_to_string(through).unwrap(), "mlx5_0\n");
        let names = tree.free_names(None).unwrap();
        assert_eq!(names, Names { ibdev: "mlx5_1".into(), uverbs: 1 });
        assert!(tree.free_names(Some("mlx5_0")).is_err());
        assert!(tree.free_names(Some("../x")).is_err());
    }

    #[test]
    fn a_device_shows_what_libibverbs_reads() {
        let dir = RunDir::create(fresh_path("test")).unwrap();
        let tree = Tree::beside(&dir.path().join("fake"), Path::new("/nowhere")).unwrap();
        let names = tree.free_names(Some("mlx5_bond_0")).unwrap();
        tree.add(&names, "1:3", &port(), LinkLayer::InfiniBand).unwrap();
        let read = |name: &str| fs::read_to_string(tree.root().join("class").join(name)).unwrap();
        assert_eq!(read("infiniband_verbs/abi_version"), "6\n");
        assert_eq!(read("infiniband_verbs/uverbs0/ibdev"), "mlx5_bond_0\n");
        assert_eq!(read("infiniband_verbs/uverbs0/dev"), "1:3\n");
        let device = "infiniband/mlx5_bond_0";
        assert_eq!(read(&format!("{device}/node_guid")), "0102:0304:0506:0708\n");
        assert_eq!(tree.node_guid(&names), Some(0x0102_0304_0506_0708));
        let gid = "fe80:0000:0000:0000:00db:00ff:fe00:0007\n";
        assert_eq!(read(&format!("{device}/ports/1/gids/0")), gid);
        assert_eq!(read(&format!("{device}/ports/1/gids/7")), EMPTY_GID);
        assert_eq!(read(&format!("{device}/ports/1/pkeys/127")), "0x0000\n");
        let real = fs::canonicalize(tree.root().join("class").join(device)).unwrap();
        let pci = real.ancestors().nth(2).unwrap();
        assert_eq!(pci.file_name().unwrap(), "0000:80:00.0");
        assert_eq!(fs::read_to_string(pci.join("vendor")).unwrap(), "0x15b3\n");
        assert_eq!(read(&format!("{device}/device/device")), "0x1019\n");
        assert_eq!(read("infiniband_verbs/uverbs0/device/device"), "0x1019\n");
        tree.remove(&names);
        assert!(!tree.root().join("class").join(device).exists() && !pci.exists());
        assert_eq!(tree.free_names(None).unwrap().uverbs, 0);
    }
}
