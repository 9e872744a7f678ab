//! The configuration of a queue pair reaches the driver.

use doorbell::{Mtu, QpAddress, QpConfig, QueuePair, RqConfig};
use doorbell_tests::by_hand::query;
use doorbell_tests::{device, skip};
use rdma_core_sys as sys;

/// Connects two queue pairs like this, and returns attributes of the first as the driver has them.
fn connected(config: QpConfig, mask: sys::ibv_qp_attr_mask) -> sys::ibv_qp_attr {
    let (_, mut receiver) = device::start(64);
    let config = config.max_send_wr(4).gid_index(0);
    let mut near = QueuePair::builder(&config).receive(&mut receiver, RqConfig::new(4)).build().unwrap();
    let far = QueuePair::builder(&config).receive(&mut receiver, RqConfig::new(4)).build().unwrap();
    near.connect(&far.address().unwrap()).unwrap();
    // SAFETY: a live queue pair.
    unsafe { query(near.as_raw(), mask) }
}

#[test]
fn packets_are_of_the_service_level_that_was_asked_for() {
    let attr = connected(QpConfig::rc().service_level(3), sys::IBV_QP_AV);
    if attr.ah_attr.dlid == 0 && attr.ah_attr.sl == 0 {
        // Linux, drivers/infiniband/hw/mlx5/qp.c: mlx5_set_path writes `eth_prio`, to_rdma_ah_attr reads `sl`.
        skip!("the kernel's mlx5 driver does not return the service level of an Ethernet port");
    }
    assert_eq!(attr.ah_attr.sl, 3);
}

#[test]
fn a_connection_has_the_attributes_of_its_configuration() {
    let config = QpConfig::rc().traffic_class(26 << 2).timeout(9).retry_cnt(5).rnr_retry(4).min_rnr_timer(17);
    let mask = sys::IBV_QP_AV
        | sys::IBV_QP_TIMEOUT
        | sys::IBV_QP_RETRY_CNT
        | sys::IBV_QP_RNR_RETRY
        | sys::IBV_QP_MIN_RNR_TIMER;
    let attr = connected(config, mask);
    assert_eq!((attr.ah_attr.is_global, attr.ah_attr.grh.traffic_class), (1, 26 << 2));
    assert_eq!((attr.timeout, attr.retry_cnt, attr.rnr_retry), (9, 5, 4));
    assert_eq!(attr.min_rnr_timer, 17);
}

#[test]
fn a_queue_pair_is_of_the_partition_that_was_asked_for() {
    let pd = device::pd();
    let last = pd.context().attr().max_pkeys - 1;
    let mut receiver = device::receiver(&pd, 64);
    let config = QpConfig::rc();
    for index in [0, last] {
        let qp = QueuePair::builder(&config.clone().pkey_index(index))
            .receive(&mut receiver, RqConfig::new(4))
            .build()
            .unwrap();
        // SAFETY: a live queue pair.
        let attr = unsafe { query(qp.as_raw(), sys::IBV_QP_PKEY_INDEX) };
        assert_eq!(attr.pkey_index, index);
    }
    let refused =
        QueuePair::builder(&config.pkey_index(last + 1)).receive(&mut receiver, RqConfig::new(4)).build().unwrap_err();
    assert!(refused.to_string().contains("pkey_index"), "{refused}");
}

#[test]
fn the_path_mtu_is_the_lesser_of_both_sides() {
    let (_, mut receiver) = device::start(64);
    let config = QpConfig::rc().max_send_wr(4);
    for (ours, theirs, path) in
        [(Mtu::Mtu1024, Mtu::Mtu256, 256), (Mtu::Mtu512, Mtu::Mtu4096, 512), (Mtu::Mtu512, Mtu::Mtu512, 512)]
    {
        let mut near =
            QueuePair::builder(&config.clone().mtu(ours)).receive(&mut receiver, RqConfig::new(4)).build().unwrap();
        let far = QueuePair::builder(&config).receive(&mut receiver, RqConfig::new(4)).build().unwrap();
        near.connect(&QpAddress { mtu: theirs, ..far.address().unwrap() }).unwrap();
        // SAFETY: a live queue pair.
        let code = unsafe { query(near.as_raw(), sys::IBV_QP_PATH_MTU) }.path_mtu;
        assert_eq!(128 << code, path, "{ours:?} here, {theirs:?} there");
        receiver.destroy_qp(near).unwrap();
        receiver.destroy_qp(far).unwrap();
    }
}
