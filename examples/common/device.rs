//! The device in words.

use std::fs;

use doorbell::{Context, Error, Result};

/// Opens the device with this name, or the first one.
pub fn open(name: Option<&str>) -> Result<Context> {
    match name {
        Some(name) => doorbell::open(name),
        None => doorbell::devices()?.first().ok_or(Error::NoDevice)?.open(),
    }
}

/// Name and kind of the device: `mlx5_0 (soft-mlx5)`, or with the name of its PCI function.
pub fn describe(context: &Context) -> String {
    let folder = context.sysfs_path();
    let description = fs::read_to_string(folder.join("node_desc")).unwrap_or_default();
    let kind = if description.starts_with("soft-mlx5") {
        "soft-mlx5".to_owned()
    } else {
        // A link into the tree of PCI devices; rxe and its like have none.
        let pci = fs::read_link(folder.join("device")).unwrap_or_default();
        pci.file_name().map_or("no PCI device".into(), |pci| pci.to_string_lossy().into_owned())
    };
    format!("{} ({kind})", context.name())
}
