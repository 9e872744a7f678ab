//! Files of the PCI function: a ConnectX-5 Ex in a slot of the fourth generation.

use std::os::unix::fs::symlink;
use std::path::Path;
use std::{fs, io};

use super::write;

const FILES: [(&str, &str); 15] = [
    ("modalias", "pci:v000015B3d00001019sv000015B3sd00000008bc02sc07i00"),
    ("vendor", "0x15b3"),
    ("device", "0x1019"),
    ("subsystem_vendor", "0x15b3"),
    ("subsystem_device", "0x0008"),
    ("class", "0x020700"),
    ("revision", "0x00"),
    ("enable", "1"),
    ("irq", "0"),
    ("numa_node", "-1"),
    ("current_link_width", "16"),
    ("current_link_speed", "16.0 GT/s PCIe"),
    ("max_link_width", "16"),
    ("max_link_speed", "16.0 GT/s PCIe"),
    ("sriov_numvfs", "0"),
];

/// Base address and flags of the only region: 32 MB of prefetchable memory with 64-bit addresses.
const REGION: (u64, u64, u64) = (0xe000_0000, 0xe1ff_ffff, 0x14_220c);
/// Regions, expansion ROM and windows of bridges that a function shows.
const RESOURCES: usize = 13;
const ONLINE: &str = "/sys/devices/system/cpu/online";

/// Directory of the driver, below the root.
const DRIVER: &str = "bus/pci/drivers/mlx5_core";

/// Adds the files of the function in directory `pci`, whose name is its address.
pub fn add(root: &Path, pci: &Path) -> io::Result<()> {
    for (name, value) in FILES {
        write(&pci.join(name), value)?;
    }
    let cpus = fs::read_to_string(ONLINE).unwrap_or_else(|_| "0".into());
    write(&pci.join("local_cpulist"), cpus.trim())?;
    write(&pci.join("resource"), &resource())?;
    fs::write(pci.join("config"), config())?;
    let slot = pci.file_name().unwrap_or_default().to_string_lossy();
    let modalias = FILES[0].1;
    let uevent = format!(
        "DRIVER=mlx5_core\nPCI_CLASS=20700\nPCI_ID=15B3:1019\nPCI_SUBSYS_ID=15B3:0008\nPCI_SLOT_NAME={slot}\nMODALIAS={modalias}"
    );
    write(&pci.join("uevent"), &uevent)?;
    fs::create_dir_all(root.join(DRIVER))?;
    symlink(Path::new("../../..").join(DRIVER), pci.join("driver"))?;
    symlink("../../../bus/pci", pci.join("subsystem"))
}

fn resource() -> String {
    let line = |(start, end, flags): (u64, u64, u64)| format!("{start:#018x} {end:#018x} {flags:#018x}");
    let regions = [REGION].into_iter().chain([(0, 0, 0); RESOURCES - 1]);
    regions.map(line).collect::<Vec<_>>().join("\n")
}

/// Returns the configuration space: the header, and the capability of PCI Express with its link.
fn config() -> [u8; 256] {
    const EXPRESS: usize = 0x60;
    let mut space = [0; 256];
    let mut put = |at: usize, bytes: &[u8]| space[at..at + bytes.len()].copy_from_slice(bytes);
    put(0x00, &0x15b3_u16.to_le_bytes());
    put(0x02, &0x1019_u16.to_le_bytes());
    // Memory, bus master, interrupts by message; a list of capabilities.
    put(0x04, &0x0406_u16.to_le_bytes());
    put(0x06, &0x0010_u16.to_le_bytes());
    // Programming interface, subclass and class.
    put(0x09, &[0x00, 0x07, 0x02]);
    put(0x0c, &[0x10]);
    put(0x10, &(REGION.0 as u32 | 0xc).to_le_bytes());
    put(0x2c, &0x15b3_u16.to_le_bytes());
    put(0x2e, &0x0008_u16.to_le_bytes());
    put(0x34, &[EXPRESS as u8]);
    // An endpoint, version 2; 16 lanes at 16 GT/s, as capability and as state.
    put(EXPRESS, &[0x10, 0x00, 0x02, 0x00]);
    put(EXPRESS + 0x0c, &0x0000_0104_u32.to_le_bytes());
    put(EXPRESS + 0x12, &0x0104_u16.to_le_bytes());
    space
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_configuration_space_says_the_same_as_the_files() {
        let space = config();
        let word = |at: usize| u16::from_le_bytes([space[at], space[at + 1]]);
        let shown = |name: &str| FILES.iter().find(|(file, _)| *file == name).unwrap().1;
        for (name, at) in [("vendor", 0), ("device", 2), ("subsystem_vendor", 0x2c), ("subsystem_device", 0x2e)] {
            assert_eq!(format!("{:#06x}", word(at)), shown(name));
        }
        let class = u32::from_le_bytes([space[9], space[10], space[11], 0]);
        assert_eq!(format!("{class:#08x}"), shown("class"));
        let link = word(usize::from(space[0x34]) + 0x12);
        assert_eq!((link >> 4 & 0x3f).to_string(), shown("current_link_width"));
        assert_eq!(resource().lines().count(), RESOURCES);
        assert_eq!(resource().lines().next(), Some("0x00000000e0000000 0x00000000e1ffffff 0x000000000014220c"));
    }
}
