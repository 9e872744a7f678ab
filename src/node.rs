//! Nodes in `/dev/infiniband`.

use std::fs::File;
use std::io;
use std::path::Path;

/// Returns the error if this user may not open a node. libibverbs and librdmacm do not report this error: they go on to
/// look for the node below `/dev/char`, and report what they find there, which is nothing without udev.
pub(crate) fn denied(name: &str) -> Option<io::Error> {
    let node = Path::new("/dev/infiniband").join(name);
    let denied = File::options().read(true).write(true).open(node).err()?;
    (denied.kind() == io::ErrorKind::PermissionDenied).then_some(denied)
}
