//! UAR objects: registers that many QPs share, and devices that are imported.

use std::ptr;

use soft_mlx5::{Builder, Device};

use crate::world::{World, poll, post_recv, post_send_with};
use rdma_core_sys::*;

// Functions that the bindings do not need.
unsafe extern "C" {
    fn ibv_import_device(cmd_fd: i32) -> *mut ibv_context;
    fn ibv_import_pd(context: *mut ibv_context, handle: u32) -> *mut ibv_pd;
    fn ibv_unimport_pd(pd: *mut ibv_pd);
    fn ibv_import_mr(pd: *mut ibv_pd, handle: u32) -> *mut ibv_mr;
    fn ibv_unimport_mr(mr: *mut ibv_mr);
}

fn shared() -> Builder {
    Device::builder().stepped().strict(true).shared_registers(true)
}

#[test]
fn qps_that_share_registers_lose_no_doorbell() {
    exchange_over_shared_registers(shared());
}

#[test]
fn wqes_that_libmlx5_copies_to_shared_registers_are_executed_whole() {
    exchange_over_shared_registers(Device::builder().stepped().strict(true).blue_flame(true));
}

fn exchange_over_shared_registers(builder: Builder) {
    let world = World::new(builder);
    let cq = world.cq(256);
    let mr = world.reg(Box::leak(vec![0; 4096].into_boxed_slice()), IBV_ACCESS_LOCAL_WRITE);
    // libmlx5 has 16 registers by default.
    let qps: Vec<_> = (0..40).map(|_| world.connected(cq, ptr::null_mut())).collect();
    for round in 1..=3 {
        for &qp in &qps {
            post_recv(qp, mr, 2048, 64);
            // Inline, libmlx5 copies the WQE to the register; otherwise only its first eight bytes.
            let (len, flags) = if round == 2 { (64, 0) } else { (32, IBV_SEND_INLINE) };
            post_send_with(qp, mr, 0, len, flags);
        }
        // All rang before the device looks.
        world.device().settle();
        let mut completions = 0;
        while let Some(wc) = poll(cq) {
            assert_eq!(wc.status, IBV_WC_SUCCESS);
            completions += 1;
        }
        assert_eq!(completions, 2 * qps.len(), "round {round}");
    }
    for qp in qps {
        // SAFETY: the QP is used no more.
        assert_eq!(unsafe { ibv_destroy_qp(qp) }, 0);
    }
}

#[test]
fn an_imported_device_shares_domains_and_regions() {
    let world = World::new(shared());
    let mr = world.reg(Box::leak(vec![0; 4096].into_boxed_slice()), IBV_ACCESS_LOCAL_WRITE);
    // SAFETY: the descriptor is a copy that the imported context owns; domain and region stay alive
    // until their imports are destroyed.
    unsafe {
        let ctx = ibv_import_device(libc::dup((*world.ctx).cmd_fd));
        assert!(!ctx.is_null(), "{}", std::io::Error::last_os_error());
        let pd = ibv_import_pd(ctx, (*world.pd).handle);
        assert!(!pd.is_null());
        let imported = ibv_import_mr(pd, (*mr).handle);
        assert!(!imported.is_null());
        assert_eq!((*imported).lkey, (*mr).lkey);
        ibv_unimport_mr(imported);
        ibv_unimport_pd(pd);
        assert_eq!(ibv_close_device(ctx), 0);
    }
}
