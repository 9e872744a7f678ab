//! Output of `ibv_devinfo`.

use crate::common::{finish, run};

#[test]
fn devinfo_shows_a_connectx_5() {
    let info = finish(&mut run(&[], &["ibv_devinfo", "-v"])).succeeded();
    for line in [
        "hca_id:\tmlx5_0",
        "vendor_part_id:\t\t\t4121",
        "vendor_id:\t\t\t0x02c9",
        "max_srq_sge:\t\t\t31",
        "max_qp_wr:\t\t\t32768",
        "state:\t\t\tPORT_ACTIVE (4)",
        "link_layer:\t\tInfiniBand",
        "GID[  0]:\t\tfe80:",
    ] {
        assert!(info.contains(line), "`{line}` is missing in\n{info}");
    }
}

#[test]
fn on_ethernet_the_port_has_no_lid() {
    let info = finish(&mut run(&["--link", "roce"], &["ibv_devinfo", "-v"])).succeeded();
    assert!(info.contains("link_layer:\t\tEthernet"), "{info}");
    assert!(info.contains("port_lid:\t\t0\n"), "{info}");
    assert!(info.contains("RoCE v2"), "{info}");
}
