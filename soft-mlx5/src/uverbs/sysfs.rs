//! The sysfs tree in which libibverbs finds devices.
//!
//! libibverbs looks below one root only (`SYSFS_PATH`), so the tree also links the entries of the real one. As
//! there, the entries of a class are links into the directory of the PCI device. Programs find the kind of
//! adapter there, by the real path.

mod pci;
mod port;

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::{fs, io};

use super::netdev;
use crate::base::counters::Counters;
use crate::commands::limits;
use crate::engine::PortAddress;
use crate::fabric::{LinkLayer, address};

const REAL: &str = "/sys";
const EMPTY_GID: &str = "0000:0000:0000:0000:0000:0000:0000:0000\n";
const EMPTY_PKEY: &str = "0x0000\n";
/// Classes that list devices, below the root.
const CLASSES: [&str; 3] = ["class/infiniband", "class/infiniband_verbs", "class/infiniband_mad"];
/// Directory that lists PCI functions, below the root.
const FUNCTIONS: &str = "bus/pci/devices";
/// Directories that list devices, ours and the real ones.
pub const LISTS: [&str; 4] = [CLASSES[0], CLASSES[1], CLASSES[2], FUNCTIONS];
/// Version of the interface that each class of character devices has.
const VERSIONS: [(&str, &str); 2] = [(CLASSES[1], "6"), (CLASSES[2], "5")];

/// Directory of the PCI functions, below the root. The real one has none of this name.
pub const DEVICES: &str = "devices/soft-mlx5";

/// A tree of device files that this process made, below its root.
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
    /// Number of the umad device.
    pub umad: u32,
}

/// A device as a tree shows it.
#[derive(Debug, Clone, Copy)]
pub struct Shown<'a> {
    /// Number of its character devices, `major:minor`.
    pub dev: &'a str,
    /// Addresses and state of the port.
    pub port: &'a PortAddress,
    /// Kind of link.
    pub link: LinkLayer,
    /// Network interface that the port is connected to.
    pub joined: Option<&'a str>,
}

impl Tree {
    /// Makes the root with links to all real devices.
    pub fn create(root: &Path) -> io::Result<Self> {
        Self::beside(root, Path::new(REAL))
    }

    fn beside(root: &Path, real: &Path) -> io::Result<Self> {
        for list in LISTS {
            fs::create_dir_all(root.join(list))?;
            let Ok(entries) = fs::read_dir(real.join(list)) else { continue };
            for entry in entries.flatten() {
                let link = root.join(list).join(entry.file_name());
                if let Err(error) = symlink(entry.path(), link) {
                    if error.kind() != io::ErrorKind::AlreadyExists {
                        return Err(error);
                    }
                }
            }
        }
        for (class, version) in VERSIONS {
            let path = root.join(class).join("abi_version");
            if !path.exists() {
                write(&path, version)?;
            }
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
        let taken = |class: &str, name: &str| fs::symlink_metadata(self.root.join(class).join(name)).is_ok();
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
        Ok(Names { ibdev, uverbs: free(CLASSES[1], "uverbs"), umad: free(CLASSES[2], "umad") })
    }

    /// Adds a device.
    pub fn add(&self, names: &Names, shown: Shown) -> io::Result<()> {
        let Shown { dev, port, link, joined } = shown;
        let pci = self.pci(names);
        let device = pci.join("infiniband").join(&names.ibdev);
        let guid = grouped(&port.guid.to_be_bytes());
        let [major, minor, sub] = limits::FW_VERSION;
        let mut files: Vec<(String, String)> = [
            ("node_type", "1: CA".into()),
            ("node_guid", guid.clone()),
            ("sys_image_guid", guid),
            ("node_desc", address::node_description(port.lid)),
            ("fw_ver", format!("{major}.{minor}.{sub:04}")),
            ("hca_type", "MT4121".into()),
            ("hw_rev", "0".into()),
            ("board_id", "MT_0000000008".into()),
        ]
        .map(|(name, value): (&str, String)| (name.into(), value))
        .into();
        files.extend(port::files(port, link, joined));
        for (name, value) in files {
            write(&device.join(name), &value)?;
        }
        pci::add(&self.root, &pci)?;
        if link == LinkLayer::Ethernet {
            let name = netdev::name(joined);
            fs::create_dir_all(pci.join("net"))?;
            symlink(Path::new(REAL).join("class/net").join(&name), pci.join("net").join(name))?;
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
        let mut entries = vec![(CLASSES[0], device)];
        for (class, name) in names.files(link) {
            let entry = pci.join(Path::new(class).file_name().unwrap_or_default()).join(name);
            write(&entry.join("ibdev"), &names.ibdev)?;
            write(&entry.join("dev"), dev)?;
            if class == CLASSES[1] {
                write(&entry.join("abi_version"), "1")?;
            } else {
                write(&entry.join("port"), "1")?;
            }
            entries.push((class, entry));
        }
        for (class, entry) in entries {
            symlink("../..", entry.join("device"))?;
            let name = entry.file_name().unwrap_or_default();
            let inside = entry.strip_prefix(&self.root).unwrap_or(&entry);
            symlink(Path::new("../..").join(inside), self.root.join(class).join(name))?;
        }
        let inside = pci.strip_prefix(&self.root).unwrap_or(&pci);
        symlink(Path::new("../../..").join(inside), self.function(&pci))
    }

    /// Returns the GUID that libibverbs reads for a device.
    pub fn node_guid(&self, names: &Names) -> Option<u64> {
        let file = self.root.join(CLASSES[0]).join(&names.ibdev).join("node_guid");
        let digits: String = fs::read_to_string(file).ok()?.chars().filter(char::is_ascii_hexdigit).collect();
        u64::from_str_radix(&digits, 16).ok()
    }

    /// Shows that the port came up or went down.
    pub fn show_port(&self, names: &Names, up: bool) {
        let pci = self.pci(names);
        let port = pci.join("infiniband").join(&names.ibdev).join("ports/1");
        for (name, value) in port::state(up) {
            // A concurrent reader finds the old state or the new one. A device that was just removed has no directory
            // for the state.
            let draft = pci.join("draft");
            let _ = fs::write(&draft, format!("{value}\n")).and_then(|()| fs::rename(&draft, port.join(name)));
        }
    }

    /// Shows the counters of the port that have changed since `before`.
    pub fn show_counters(&self, names: &Names, before: &Counters, now: &Counters) {
        port::show(&self.pci(names).join("infiniband").join(&names.ibdev).join("ports/1"), before, now);
    }

    /// Takes a device out again.
    pub fn remove(&self, names: &Names) {
        let device = (CLASSES[0], names.ibdev.clone());
        for (class, name) in names.files(LinkLayer::InfiniBand).into_iter().chain([device]) {
            let _ = fs::remove_file(self.root.join(class).join(name));
        }
        let pci = self.pci(names);
        let _ = fs::remove_file(self.function(&pci));
        let _ = fs::remove_dir_all(pci);
    }

    /// Returns the entry of a PCI function in the list of all.
    fn function(&self, pci: &Path) -> PathBuf {
        self.root.join(FUNCTIONS).join(pci.file_name().unwrap_or_default())
    }

    fn pci(&self, names: &Names) -> PathBuf {
        // Names of devices are unique in the tree, and so are the numbers of uverbs devices.
        let (bus, function) = (0x80 + names.uverbs / 8, names.uverbs % 8);
        self.root.join(DEVICES).join(format!("0000:{bus:02x}:00.{function}"))
    }
}

impl Names {
    /// Returns the classes and names of its character devices. Only InfiniBand has a subnet manager.
    fn files(&self, link: LinkLayer) -> Vec<(&'static str, String)> {
        let mut files =
            vec![(CLASSES[1], format!("uverbs{}", self.uverbs)), (CLASSES[2], format!("umad{}", self.umad))];
        if link == LinkLayer::InfiniBand {
            files.push((CLASSES[2], format!("issm{}", self.umad)));
        }
        files
    }
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
    use crate::base::run_dir::{RunDir, fresh_path};
    use crate::fabric::address::table_entry;

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
        assert_eq!(names, Names { ibdev: "mlx5_1".into(), uverbs: 1, umad: 0 });
        assert!(tree.free_names(Some("mlx5_0")).is_err());
        assert!(tree.free_names(Some("../x")).is_err());
    }

    #[test]
    fn a_device_shows_what_libibverbs_reads() {
        let dir = RunDir::create(fresh_path("test")).unwrap();
        let tree = Tree::beside(&dir.path().join("fake"), Path::new("/nowhere")).unwrap();
        let names = tree.free_names(Some("mlx5_bond_0")).unwrap();
        let (port, link) = (port(), LinkLayer::InfiniBand);
        tree.add(&names, Shown { dev: "1:3", port: &port, link, joined: None }).unwrap();
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
        let listed = tree.root().join(FUNCTIONS).join("0000:80:00.0");
        assert_eq!(fs::canonicalize(&listed).unwrap(), pci);
        assert_eq!(fs::read_to_string(pci.join("vendor")).unwrap(), "0x15b3\n");
        assert_eq!(read(&format!("{device}/device/device")), "0x1019\n");
        assert_eq!(read("infiniband_verbs/uverbs0/device/device"), "0x1019\n");
        for name in ["umad0", "issm0"] {
            assert_eq!(read(&format!("infiniband_mad/{name}/ibdev")), "mlx5_bond_0\n");
            assert_eq!(read(&format!("infiniband_mad/{name}/device/class")), "0x020700\n");
        }
        let driver = fs::read_link(pci.join("driver")).unwrap();
        assert_eq!(driver.file_name().unwrap(), "mlx5_core");
        let counter = format!("{device}/ports/1/counters/port_xmit_data");
        let mut counters = Counters::default();
        assert_eq!(read(&counter), "0\n");
        for (value, text) in [(1234, "1234\n"), (77, "77\n")] {
            let before = counters;
            counters.port.xmit_data = value;
            tree.show_counters(&names, &before, &counters);
            assert_eq!(read(&counter), text);
        }
        tree.remove(&names);
        assert!(
            !tree.root().join("class").join(device).exists() && !pci.exists() && fs::symlink_metadata(listed).is_err()
        );
        assert_eq!(tree.free_names(None).unwrap().uverbs, 0);
    }
}
