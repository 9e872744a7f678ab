//! Nodes in `/dev/infiniband`.

use std::fs::File;
use std::io;
use std::path::Path;

/// That this user may not open a node, if so. Where libibverbs and librdmacm cannot open one they go on to look for
/// it below `/dev/char`, and report what they find there: where there is no udev that nothing is.
pub(crate) fn denied(name: &str) -> Option<io::Error> {
    let node = Path::new("/dev/infiniband").join(name);
    let denied = File::options().read(true).write(true).open(node).err()?;
    (denied.kind() == io::ErrorKind::PermissionDenied).then_some(denied)
}
