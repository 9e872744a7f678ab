//! Structures of the connection manager's file (`rdma/rdma_user_cm.h`, `rdma/ib_user_sa.h`).

use super::structure;

/// `struct sockaddr_storage`, in rows.
pub type Storage = [[u8; 32]; 4];
/// `struct sockaddr_in6`.
pub type Sockaddr6 = [u8; 28];
/// Private data, in rows.
pub type PrivateData = [[u8; 32]; 8];

structure! {
    struct CommandHeader = 8 {
        command: u32,
        in_len: u16,
        out_len: u16,
    }
}
structure! {
    struct CreateId = 24 {
        uid: u64,
        response: u64,
        ps: u16,
        qp_type: u8,
        reserved: [u8; 5],
    }
}
structure! {
    /// DESTROY_ID, LEAVE_MCAST.
    struct DestroyId = 16 {
        response: u64,
        id: u32,
        reserved: u32,
    }
}
structure! {
    struct BindIp = 40 {
        response: u64,
        addr: Sockaddr6,
        id: u32,
    }
}
structure! {
    struct Bind = 136 {
        id: u32,
        addr_size: u16,
        reserved: u16,
        addr: Storage,
    }
}
structure! {
    struct ResolveIp = 64 {
        src_addr: Sockaddr6,
        dst_addr: Sockaddr6,
        id: u32,
        timeout_ms: u32,
    }
}
structure! {
    struct ResolveAddr = 272 {
        id: u32,
        timeout_ms: u32,
        src_size: u16,
        dst_size: u16,
        reserved: u32,
        src_addr: Storage,
        dst_addr: Storage,
    }
}
structure! {
    struct ResolveRoute = 8 {
        id: u32,
        timeout_ms: u32,
    }
}
structure! {
    /// QUERY, QUERY_ROUTE.
    struct Query = 16 {
        response: u64,
        id: u32,
        option: u32,
    }
}
structure! {
    struct UserPath = 64 {
        dgid: [u8; 16],
        sgid: [u8; 16],
        dlid: [u8; 2],
        slid: [u8; 2],
        raw_traffic: u32,
        flow_label: [u8; 4],
        reversible: u32,
        mtu: u32,
        pkey: [u8; 2],
        hop_limit: u8,
        traffic_class: u8,
        numb_path: u8,
        sl: u8,
        mtu_selector: u8,
        rate_selector: u8,
        rate: u8,
        packet_life_time_selector: u8,
        packet_life_time: u8,
        preference: u8,
    }
}
structure! {
    /// Without the index of the device that newer kernels append: libraries then go by the GUID.
    struct QueryRouteResp = 200 {
        node_guid: u64,
        ib_route: [UserPath; 2],
        src_addr: Sockaddr6,
        dst_addr: Sockaddr6,
        num_paths: u32,
        port_num: u8,
        reserved: [u8; 3],
    }
}
structure! {
    /// Without the index of the device that newer kernels append: libraries then go by the GUID.
    struct QueryAddrResp = 272 {
        node_guid: u64,
        port_num: u8,
        reserved: u8,
        pkey: u16,
        src_size: u16,
        dst_size: u16,
        src_addr: Storage,
        dst_addr: Storage,
    }
}
structure! {
    struct QueryPathResp = 8 {
        num_paths: u32,
        reserved: u32,
    }
}
structure! {
    /// A path record as it stands in a datagram, and what it is for.
    struct PathData = 72 {
        flags: u32,
        reserved: u32,
        record: [[u8; 32]; 2],
    }
}
structure! {
    struct ConnParam = 272 {
        qp_num: u32,
        qkey: u32,
        private_data: PrivateData,
        private_data_len: u8,
        srq: u8,
        responder_resources: u8,
        initiator_depth: u8,
        flow_control: u8,
        retry_count: u8,
        rnr_retry_count: u8,
        valid: u8,
    }
}
structure! {
    struct AhAttr = 32 {
        dgid: [u8; 16],
        flow_label: u32,
        sgid_index: u8,
        hop_limit: u8,
        traffic_class: u8,
        reserved1: u8,
        dlid: u16,
        sl: u8,
        src_path_bits: u8,
        static_rate: u8,
        is_global: u8,
        port_num: u8,
        reserved2: u8,
    }
}
structure! {
    struct UdParam = 304 {
        qp_num: u32,
        qkey: u32,
        ah_attr: AhAttr,
        private_data: PrivateData,
        private_data_len: u8,
        reserved: [u8; 7],
    }
}
structure! {
    struct Connect = 288 {
        conn_param: ConnParam,
        id: u32,
        reserved: u32,
        ece: [u32; 2],
    }
}
structure! {
    struct Listen = 8 {
        id: u32,
        backlog: u32,
    }
}
structure! {
    struct Accept = 296 {
        uid: u64,
        conn_param: ConnParam,
        id: u32,
        reserved: u32,
        ece: [u32; 2],
    }
}
structure! {
    struct Reject = 264 {
        id: u32,
        private_data_len: u8,
        reason: u8,
        reserved: [u8; 2],
        private_data: PrivateData,
    }
}
structure! {
    struct InitQpAttr = 16 {
        response: u64,
        id: u32,
        qp_state: u32,
    }
}
structure! {
    struct QpAttr = 144 {
        qp_attr_mask: u32,
        qp_state: u32,
        cur_qp_state: u32,
        path_mtu: u32,
        path_mig_state: u32,
        qkey: u32,
        rq_psn: u32,
        sq_psn: u32,
        dest_qp_num: u32,
        qp_access_flags: u32,
        ah_attr: AhAttr,
        alt_ah_attr: AhAttr,
        capabilities: [u32; 5],
        pkey_index: u16,
        alt_pkey_index: u16,
        en_sqd_async_notify: u8,
        sq_draining: u8,
        max_rd_atomic: u8,
        max_dest_rd_atomic: u8,
        min_rnr_timer: u8,
        port_num: u8,
        timeout: u8,
        retry_cnt: u8,
        rnr_retry: u8,
        alt_port_num: u8,
        alt_timeout: u8,
        reserved: [u8; 5],
    }
}
structure! {
    struct Notify = 8 {
        id: u32,
        event: u32,
    }
}
structure! {
    struct SetOption = 24 {
        optval: u64,
        id: u32,
        level: u32,
        optname: u32,
        optlen: u32,
    }
}
structure! {
    struct MigrateId = 16 {
        response: u64,
        id: u32,
        fd: i32,
    }
}
structure! {
    struct JoinIpMcast = 48 {
        response: u64,
        uid: u64,
        addr: Sockaddr6,
        id: u32,
    }
}
structure! {
    struct JoinMcast = 152 {
        response: u64,
        uid: u64,
        id: u32,
        addr_size: u16,
        join_flags: u16,
        addr: Storage,
    }
}
structure! {
    struct WriteEvent = 24 {
        id: u32,
        reserved: u32,
        event: u32,
        status: u32,
        arg: u64,
    }
}
structure! {
    /// Head of an event; a [`UdParam`] or a [`ConnParam`] of the same room follows, and an [`EventTail`].
    struct EventHead = 20 {
        uid: u64,
        id: u32,
        event: u32,
        status: u32,
    }
}
structure! {
    struct EventTail = 12 {
        reserved: u32,
        ece: [u32; 2],
    }
}
