/* One list of verbs calls, and what the kernel answers: a line `call: answer` for each, on standard output.
 *
 * The list is compared between soft-mlx5 as a kernel (`soft-mlx5 run`) and the kernel's mlx5 driver above soft-mlx5 as an
 * adapter (a virtual machine). Numbers that differ from run to run are left out. See docs/vm.md. */

#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static struct ibv_mr *mr;
static uint8_t memory[4096] __attribute__((aligned(4096)));
static int ethernet;
static uint16_t lid;
static union ibv_gid gid;

static const char *error(int number)
{
    switch (number) {
    case 0: return "ok";
    case EPERM: return "EPERM";
    case ENOENT: return "ENOENT";
    case EIO: return "EIO";
    case E2BIG: return "E2BIG";
    case EBADF: return "EBADF";
    case EAGAIN: return "EAGAIN";
    case ENOMEM: return "ENOMEM";
    case EACCES: return "EACCES";
    case EFAULT: return "EFAULT";
    case EBUSY: return "EBUSY";
    case EEXIST: return "EEXIST";
    case ENODEV: return "ENODEV";
    case EINVAL: return "EINVAL";
    case ENOSPC: return "ENOSPC";
    case ERANGE: return "ERANGE";
    case ENOSYS: return "ENOSYS";
    case ENODATA: return "ENODATA";
    case EPROTONOSUPPORT: return "EPROTONOSUPPORT";
    case EOPNOTSUPP: return "EOPNOTSUPP";
    case EREMOTEIO: return "EREMOTEIO";
    default: return strerror(number);
    }
}

__attribute__((format(printf, 2, 3))) static void say(const char *answer, const char *call, ...)
{
    va_list arguments;

    va_start(arguments, call);
    vprintf(call, arguments);
    va_end(arguments);
    printf(": %s\n", answer);
    fflush(stdout);
}

static void number(const char *call, unsigned long long value)
{
    printf("%s: %llu\n", call, value);
}

/* What a call that returns an error number says, or one that returns -1. */
static const char *code(int returned)
{
    return error(returned == -1 ? errno : returned < 0 ? -returned : returned);
}

static const char *made(const void *object)
{
    /* Some refusals of libmlx5 leave errno as it was. */
    const char *answer = object ? "ok" : errno ? error(errno) : "refused";

    errno = 0;
    return answer;
}

static void *need(void *object, const char *name)
{
    if (!object) {
        fprintf(stderr, "answers: there is no %s: %s\n", name, strerror(errno));
        exit(1);
    }
    return object;
}

/* ---- the device and its port ---- */

static void limits(void)
{
    struct ibv_device_attr_ex all;
    struct ibv_device_attr *attr = &all.orig_attr;

    memset(&all, 0, sizeof(all));
    say(code(ibv_query_device_ex(context, NULL, &all)), "query_device_ex");
    say(attr->fw_ver, "fw_ver");
#define FIELD(name) number(#name, (unsigned long long)attr->name)
    FIELD(max_mr_size);
    FIELD(page_size_cap);
    FIELD(vendor_id);
    FIELD(vendor_part_id);
    FIELD(hw_ver);
    FIELD(max_qp);
    FIELD(max_qp_wr);
    FIELD(device_cap_flags);
    FIELD(max_sge);
    FIELD(max_sge_rd);
    FIELD(max_cq);
    FIELD(max_cqe);
    FIELD(max_mr);
    FIELD(max_pd);
    FIELD(max_qp_rd_atom);
    FIELD(max_ee_rd_atom);
    FIELD(max_res_rd_atom);
    FIELD(max_qp_init_rd_atom);
    FIELD(atomic_cap);
    FIELD(max_mw);
    FIELD(max_mcast_grp);
    FIELD(max_mcast_qp_attach);
    FIELD(max_total_mcast_qp_attach);
    FIELD(max_ah);
    FIELD(max_srq);
    FIELD(max_srq_wr);
    FIELD(max_srq_sge);
    FIELD(max_pkeys);
    FIELD(local_ca_ack_delay);
    FIELD(phys_port_cnt);
#undef FIELD
#define FIELD(name) number(#name, (unsigned long long)all.name)
    FIELD(odp_caps.general_caps);
    FIELD(completion_timestamp_mask);
    FIELD(hca_core_clock);
    FIELD(device_cap_flags_ex);
    FIELD(tso_caps.max_tso);
    FIELD(tso_caps.supported_qpts);
    FIELD(rss_caps.supported_qpts);
    FIELD(rss_caps.max_rwq_indirection_tables);
    FIELD(rss_caps.max_rwq_indirection_table_size);
    FIELD(rss_caps.rx_hash_fields_mask);
    FIELD(rss_caps.rx_hash_function);
    FIELD(max_wq_type_rq);
    FIELD(packet_pacing_caps.qp_rate_limit_max);
    FIELD(raw_packet_caps);
    FIELD(tm_caps.max_num_tags);
    FIELD(tm_caps.max_ops);
    FIELD(cq_mod_caps.max_cq_count);
    FIELD(cq_mod_caps.max_cq_period);
    FIELD(max_dm_size);
    FIELD(pci_atomic_caps.fetch_add);
    FIELD(xrc_odp_caps);
    FIELD(phys_port_cnt_ex);
#undef FIELD
}

static void ports(void)
{
    struct ibv_port_attr attr;
    union ibv_gid found;
    uint16_t pkey;

    say(code(ibv_query_port(context, 0, &attr)), "query_port 0");
    say(code(ibv_query_port(context, 2, &attr)), "query_port 2");
    say(code(ibv_query_port(context, 1, &attr)), "query_port 1");
#define FIELD(name) number("port " #name, (unsigned long long)attr.name)
    FIELD(state);
    FIELD(max_mtu);
    FIELD(active_mtu);
    FIELD(gid_tbl_len);
    FIELD(port_cap_flags);
    FIELD(port_cap_flags2);
    FIELD(max_msg_sz);
    FIELD(bad_pkey_cntr);
    FIELD(qkey_viol_cntr);
    FIELD(pkey_tbl_len);
    FIELD(lmc);
    FIELD(max_vl_num);
    FIELD(sm_sl);
    FIELD(subnet_timeout);
    FIELD(init_type_reply);
    FIELD(active_width);
    FIELD(active_speed);
    FIELD(phys_state);
    FIELD(link_layer);
    FIELD(flags);
#undef FIELD
    say(code(ibv_query_gid(context, 1, 0, &found)), "query_gid 0");
    say(code(ibv_query_gid(context, 1, attr.gid_tbl_len, &found)), "query_gid beyond the table");
    say(code(ibv_query_gid(context, 2, 0, &found)), "query_gid of port 2");
    say(code(ibv_query_pkey(context, 1, 0, &pkey)), "query_pkey 0");
    number("pkey 0", be16toh(pkey));
    say(code(ibv_query_pkey(context, 1, 1, &pkey)), "query_pkey 1");
    number("pkey 1", be16toh(pkey));
    say(code(ibv_query_pkey(context, 1, attr.pkey_tbl_len, &pkey)), "query_pkey beyond the table");
}

/* ---- memory ---- */

static void registration(void)
{
    static const int rights[] = {
        0, IBV_ACCESS_LOCAL_WRITE, IBV_ACCESS_REMOTE_READ, IBV_ACCESS_REMOTE_WRITE, IBV_ACCESS_REMOTE_ATOMIC,
        IBV_ACCESS_MW_BIND, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_ATOMIC, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND,
        IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_RELAXED_ORDERING, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_HUGETLB,
        IBV_ACCESS_LOCAL_WRITE | 1 << 12, IBV_ACCESS_LOCAL_WRITE | 1 << 19, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_ZERO_BASED,
        IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_ON_DEMAND,
    };
    void *page = mmap(NULL, 8192, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    struct ibv_mr *made_mr;
    struct ibv_pd *other = need(ibv_alloc_pd(context), "domain");
    size_t i;

    for (i = 0; i < sizeof(rights) / sizeof(*rights); i++) {
        made_mr = ibv_reg_mr(pd, memory, sizeof(memory), rights[i]);
        say(made(made_mr), "reg_mr rights %#x", rights[i]);
        if (made_mr)
            say(code(ibv_dereg_mr(made_mr)), "dereg_mr rights %#x", rights[i]);
    }
    made_mr = ibv_reg_mr(pd, memory, 0, IBV_ACCESS_LOCAL_WRITE);
    say(made(made_mr), "reg_mr of no bytes");
    if (made_mr)
        say(code(ibv_dereg_mr(made_mr)), "dereg_mr of no bytes");
    made_mr = ibv_reg_mr(pd, page, 4096, 0);
    say(made(made_mr), "reg_mr of a page for reading");
    if (made_mr)
        ibv_dereg_mr(made_mr);
    say(made(ibv_reg_mr(pd, page, 4096, IBV_ACCESS_LOCAL_WRITE)), "reg_mr of a page for reading, to be written");
    munmap((char *)page + 4096, 4096);
    say(made(ibv_reg_mr(pd, page, 8192, 0)), "reg_mr of a page that is not mapped");
    say(made(ibv_reg_mr(pd, (void *)-8192ul, 16384, 0)), "reg_mr beyond the end of memory");
    say(made(ibv_reg_mr(pd, memory, 1ull << 62, 0)), "reg_mr of 2^62 bytes");

    made_mr = need(ibv_reg_mr(other, memory, 64, IBV_ACCESS_LOCAL_WRITE), "memory region");
    say(code(ibv_dealloc_pd(other)), "dealloc_pd with a region");
    say(code(ibv_dereg_mr(made_mr)), "dereg_mr");
    say(code(ibv_dealloc_pd(other)), "dealloc_pd");
}

static void windows(void)
{
    static const int types[] = { 0, IBV_MW_TYPE_1, IBV_MW_TYPE_2, 3 };
    struct ibv_mw *window;
    size_t i;

    for (i = 0; i < sizeof(types) / sizeof(*types); i++) {
        window = ibv_alloc_mw(pd, types[i]);
        say(made(window), "alloc_mw type %d", types[i]);
        if (window)
            say(code(ibv_dealloc_mw(window)), "dealloc_mw type %d", types[i]);
    }
}

/* ---- completion queues and shared receive queues ---- */

static void completion_queues(void)
{
    static const int sizes[] = { 1, 255, 256, 4095, 1 << 22, (1 << 22) - 1, 1 << 24, 0x7fffffff };
    struct ibv_comp_channel *channel = need(ibv_create_comp_channel(context), "channel");
    struct ibv_modify_cq_attr moderation = { .attr_mask = IBV_CQ_ATTR_MODERATE };
    struct ibv_cq *one;
    size_t i;

    for (i = 0; i < sizeof(sizes) / sizeof(*sizes); i++) {
        /* The largest take more memory than the machine has. */
        if (sizes[i] >= (1 << 22) - 1 && sizes[i] <= 1 << 22)
            continue;
        one = ibv_create_cq(context, sizes[i], NULL, NULL, 0);
        say(made(one), "create_cq %d", sizes[i]);
        if (one) {
            number("cqe", one->cqe);
            say(code(ibv_destroy_cq(one)), "destroy_cq %d", sizes[i]);
        }
    }
    say(made(ibv_create_cq(context, 16, NULL, NULL, 1000)), "create_cq of vector 1000");
    say(made(ibv_create_cq(context, 16, NULL, NULL, -1)), "create_cq of vector -1");

    one = need(ibv_create_cq(context, 16, NULL, channel, 0), "CQ");
    say(code(ibv_resize_cq(one, 100)), "resize_cq 100");
    number("cqe", one->cqe);
    say(code(ibv_resize_cq(one, 1)), "resize_cq 1");
    number("cqe", one->cqe);
    say(code(ibv_resize_cq(one, 0)), "resize_cq 0");
    say(code(ibv_resize_cq(one, 1 << 24)), "resize_cq 2^24");
    moderation.moderate.cq_count = 8;
    moderation.moderate.cq_period = 16;
    say(code(ibv_modify_cq(one, &moderation)), "modify_cq 8, 16 us");
    moderation.moderate.cq_count = 0xffff;
    say(code(ibv_modify_cq(one, &moderation)), "modify_cq 65535, 16 us");
    moderation.attr_mask = 0;
    say(code(ibv_modify_cq(one, &moderation)), "modify_cq of nothing");
    say(code(ibv_destroy_comp_channel(channel)), "destroy_comp_channel with a CQ");
    say(code(ibv_destroy_cq(one)), "destroy_cq with a channel");
    say(code(ibv_destroy_comp_channel(channel)), "destroy_comp_channel");
}

static struct ibv_srq *new_srq(uint32_t max_wr, uint32_t max_sge)
{
    struct ibv_srq_init_attr init = { .attr = { .max_wr = max_wr, .max_sge = max_sge } };
    struct ibv_srq *srq = ibv_create_srq(pd, &init);

    say(made(srq), "create_srq %u, %u", max_wr, max_sge);
    if (srq) {
        number("max_wr", init.attr.max_wr);
        number("max_sge", init.attr.max_sge);
    }
    return srq;
}

static void query_srq(struct ibv_srq *srq)
{
    struct ibv_srq_attr attr;

    memset(&attr, 0xee, sizeof(attr));
    say(code(ibv_query_srq(srq, &attr)), "query_srq");
    number("srq max_wr", attr.max_wr);
    number("srq max_sge", attr.max_sge);
    number("srq_limit", attr.srq_limit);
}

static void shared_receive_queues(void)
{
    struct ibv_srq_attr attr = { .srq_limit = 10 };
    struct ibv_srq *srq = new_srq(100, 2);

    query_srq(srq);
    say(code(ibv_modify_srq(srq, &attr, IBV_SRQ_LIMIT)), "modify_srq limit 10");
    query_srq(srq);
    attr.srq_limit = 1000;
    say(code(ibv_modify_srq(srq, &attr, IBV_SRQ_LIMIT)), "modify_srq limit 1000");
    attr.max_wr = 200;
    say(code(ibv_modify_srq(srq, &attr, IBV_SRQ_MAX_WR)), "modify_srq max_wr 200");
    say(code(ibv_modify_srq(srq, &attr, 0)), "modify_srq of nothing");
    say(code(ibv_modify_srq(srq, &attr, 4)), "modify_srq of an unknown attribute");
    say(code(ibv_destroy_srq(srq)), "destroy_srq");

    for (uint32_t wr = 0; wr < 2; wr++) {
        srq = new_srq(wr, 1);
        if (srq)
            ibv_destroy_srq(srq);
    }
    srq = new_srq(1, 0);
    if (srq)
        ibv_destroy_srq(srq);
    new_srq(1 << 20, 1);
    new_srq(1, 1000);
}

/* ---- queue pairs ---- */

static const char *const type_name[] = {
    [IBV_QPT_RC] = "rc", [IBV_QPT_UC] = "uc", [IBV_QPT_UD] = "ud", [IBV_QPT_RAW_PACKET] = "raw",
};

static struct ibv_qp *new_qp(int type, struct ibv_qp_cap cap, struct ibv_srq *srq)
{
    struct ibv_qp_init_attr init = { .send_cq = cq, .recv_cq = cq, .srq = srq, .qp_type = type, .cap = cap };
    struct ibv_qp *qp = ibv_create_qp(pd, &init);

    say(made(qp), "create_qp %s %u+%u wr, %u+%u sge, inline %u%s", type_name[type], cap.max_send_wr, cap.max_recv_wr,
        cap.max_send_sge, cap.max_recv_sge, cap.max_inline_data, srq ? ", srq" : "");
    if (qp) {
        number("max_send_wr", init.cap.max_send_wr);
        number("max_recv_wr", init.cap.max_recv_wr);
        number("max_send_sge", init.cap.max_send_sge);
        number("max_recv_sge", init.cap.max_recv_sge);
        number("max_inline_data", init.cap.max_inline_data);
    }
    return qp;
}

static const struct ibv_qp_cap small = {
    .max_send_wr = 16, .max_recv_wr = 16, .max_send_sge = 2, .max_recv_sge = 2, .max_inline_data = 32,
};

static void queue_pairs(void)
{
    static const int types[] = { IBV_QPT_RC, IBV_QPT_UC, IBV_QPT_UD };
    struct ibv_srq *srq;
    struct ibv_qp *qp;
    struct ibv_qp_cap cap;
    size_t i;

    for (i = 0; i < sizeof(types) / sizeof(*types); i++) {
        qp = need(new_qp(types[i], small, NULL), "queue pair");
        say(code(ibv_destroy_qp(qp)), "destroy_qp %s", type_name[types[i]]);
        cap = small;
        cap.max_send_wr = cap.max_recv_wr = 0;
        qp = new_qp(types[i], cap, NULL);
        if (qp)
            ibv_destroy_qp(qp);
        cap = small;
        cap.max_send_wr = 1 << 20;
        new_qp(types[i], cap, NULL);
        cap = small;
        cap.max_recv_wr = 1 << 20;
        new_qp(types[i], cap, NULL);
        cap = small;
        cap.max_send_sge = 100;
        new_qp(types[i], cap, NULL);
        cap = small;
        cap.max_recv_sge = 100;
        new_qp(types[i], cap, NULL);
        cap = small;
        cap.max_inline_data = 4000;
        new_qp(types[i], cap, NULL);
    }
    srq = need(new_srq(10, 1), "SRQ");
    qp = new_qp(IBV_QPT_RC, small, srq);
    say(code(ibv_destroy_srq(srq)), "destroy_srq with a queue pair");
    say(code(ibv_destroy_cq(cq)), "destroy_cq with a queue pair");
    say(code(ibv_destroy_qp(qp)), "destroy_qp with an srq");
    qp = new_qp(IBV_QPT_UC, small, srq);
    if (qp)
        ibv_destroy_qp(qp);
    qp = new_qp(IBV_QPT_UD, small, srq);
    if (qp)
        ibv_destroy_qp(qp);
    ibv_destroy_srq(srq);
    if (!ethernet)
        new_qp(IBV_QPT_RAW_PACKET, small, NULL);
}

/* ---- states of queue pairs ---- */

struct step {
    int state, mask;
};

static struct ibv_qp_attr attributes(int type)
{
    struct ibv_qp_attr attr = {
        .port_num = 1, .qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ, .qkey = 0x1111,
        .path_mtu = IBV_MTU_1024, .dest_qp_num = 1, .rq_psn = 5, .sq_psn = 7, .max_dest_rd_atomic = 4, .max_rd_atomic = 4,
        .min_rnr_timer = 12, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7,
        .ah_attr = { .dlid = lid, .port_num = 1 },
    };

    (void)type;
    if (ethernet) {
        attr.ah_attr.is_global = 1;
        attr.ah_attr.grh.dgid = gid;
        attr.ah_attr.grh.hop_limit = 1;
    }
    return attr;
}

/* Masks that a transition needs. */
static int needed(int type, int state)
{
    switch (state) {
    case IBV_QPS_INIT:
        return IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | (type == IBV_QPT_UD ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS);
    case IBV_QPS_RTR:
        return IBV_QP_STATE | (type == IBV_QPT_UD ? 0 : IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN) |
               (type == IBV_QPT_RC ? IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER : 0);
    case IBV_QPS_RTS:
        return IBV_QP_STATE | IBV_QP_SQ_PSN |
               (type == IBV_QPT_RC ? IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC : 0);
    default:
        return IBV_QP_STATE;
    }
}

static int move(struct ibv_qp *qp, int type, int state, int mask)
{
    struct ibv_qp_attr attr = attributes(type);

    attr.qp_state = state;
    return ibv_modify_qp(qp, &attr, mask);
}

static struct ibv_qp *at(int type, int state)
{
    struct ibv_qp_init_attr init = { .send_cq = cq, .recv_cq = cq, .qp_type = type, .cap = small };
    struct ibv_qp *qp = need(ibv_create_qp(pd, &init), "queue pair");
    int next;

    for (next = IBV_QPS_INIT; next <= state && next <= IBV_QPS_RTS; next++)
        if (move(qp, type, next, needed(type, next)))
            need(NULL, "way to that state");
    if (state > IBV_QPS_RTS && move(qp, type, state, IBV_QP_STATE))
        need(NULL, "way to that state");
    return qp;
}

static void transitions(int type)
{
    static const int states[] = { IBV_QPS_RESET, IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS, IBV_QPS_ERR };
    static const char *const names[] = { "RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR" };
    size_t from, bit;
    int to, mask;
    struct ibv_qp *qp;

    for (from = 0; from < sizeof(states) / sizeof(*states); from++)
        for (to = IBV_QPS_RESET; to <= IBV_QPS_ERR; to++) {
            qp = at(type, states[from]);
            say(code(move(qp, type, to, needed(type, to))), "modify_qp %s %s to %s", type_name[type], names[states[from]], names[to]);
            ibv_destroy_qp(qp);
        }
    /* Each attribute that is needed is missing once, and each that is not needed is there once. */
    for (to = IBV_QPS_INIT; to <= IBV_QPS_RTS; to++)
        for (bit = 1; bit <= 20; bit++) {
            mask = needed(type, to) ^ 1 << bit;
            qp = at(type, to - 1);
            say(code(move(qp, type, to, mask)), "modify_qp %s to %s, mask %#x", type_name[type], names[to], mask);
            ibv_destroy_qp(qp);
        }
    /* In RTS. */
    for (bit = 1; bit <= 20; bit++) {
        qp = at(type, IBV_QPS_RTS);
        say(code(move(qp, type, IBV_QPS_RTS, IBV_QP_STATE | 1 << bit)), "modify_qp %s in RTS, mask %#x", type_name[type],
            IBV_QP_STATE | 1 << (int)bit);
        ibv_destroy_qp(qp);
    }
}

static void query(struct ibv_qp *qp, int type)
{
    struct ibv_qp_attr attr;
    struct ibv_qp_init_attr init;

    memset(&attr, 0, sizeof(attr));
    memset(&init, 0, sizeof(init));
    say(code(ibv_query_qp(qp, &attr, IBV_QP_STATE, &init)), "query_qp %s", type_name[type]);
#define FIELD(name) number("qp " #name, (unsigned long long)attr.name)
    FIELD(qp_state);
    FIELD(cur_qp_state);
    FIELD(path_mtu);
    FIELD(path_mig_state);
    FIELD(qkey);
    FIELD(rq_psn);
    FIELD(sq_psn);
    FIELD(dest_qp_num);
    FIELD(qp_access_flags);
    FIELD(cap.max_send_wr);
    FIELD(cap.max_recv_wr);
    FIELD(cap.max_send_sge);
    FIELD(cap.max_recv_sge);
    FIELD(cap.max_inline_data);
    FIELD(ah_attr.is_global);
    FIELD(ah_attr.sl);
    FIELD(ah_attr.src_path_bits);
    FIELD(ah_attr.static_rate);
    FIELD(ah_attr.port_num);
    FIELD(pkey_index);
    FIELD(alt_pkey_index);
    FIELD(en_sqd_async_notify);
    FIELD(sq_draining);
    FIELD(max_rd_atomic);
    FIELD(max_dest_rd_atomic);
    FIELD(min_rnr_timer);
    FIELD(port_num);
    FIELD(timeout);
    FIELD(retry_cnt);
    FIELD(rnr_retry);
    FIELD(alt_port_num);
    FIELD(alt_timeout);
#undef FIELD
    number("init sq_sig_all", init.sq_sig_all);
    number("init cap.max_send_wr", init.cap.max_send_wr);
    number("init cap.max_inline_data", init.cap.max_inline_data);
}

static void queries(int type)
{
    int state;
    struct ibv_qp *qp;

    for (state = IBV_QPS_RESET; state <= IBV_QPS_ERR; state++) {
        if (state == IBV_QPS_SQD || state == IBV_QPS_SQE)
            continue;
        qp = at(type, state);
        query(qp, type);
        ibv_destroy_qp(qp);
    }
}

/* Values that are out of range. */
#define WRONG(state, mask, text, change)                                            \
    do {                                                                            \
        struct ibv_qp *qp = at(IBV_QPT_RC, (state) - 1);                            \
        struct ibv_qp_attr attr = attributes(IBV_QPT_RC);                           \
                                                                                    \
        attr.qp_state = (state);                                                    \
        change;                                                                     \
        say(code(ibv_modify_qp(qp, &attr, needed(IBV_QPT_RC, state) | (mask))), "modify_qp rc, " text); \
        ibv_destroy_qp(qp);                                                         \
    } while (0)

static void wrong_values(void)
{
    struct ibv_qp *qp;
    struct ibv_qp_attr attr;

    WRONG(IBV_QPS_INIT, 0, "port 0", attr.port_num = 0);
    WRONG(IBV_QPS_INIT, 0, "port 2", attr.port_num = 2);
    WRONG(IBV_QPS_INIT, 0, "pkey index 1", attr.pkey_index = 1);
    WRONG(IBV_QPS_INIT, 0, "pkey index 127", attr.pkey_index = 127);
    WRONG(IBV_QPS_INIT, 0, "pkey index 200", attr.pkey_index = 200);
    WRONG(IBV_QPS_INIT, 0, "access on demand", attr.qp_access_flags = IBV_ACCESS_ON_DEMAND);
    WRONG(IBV_QPS_INIT, 0, "access atomic", attr.qp_access_flags = IBV_ACCESS_REMOTE_ATOMIC);
    WRONG(IBV_QPS_RTR, 0, "MTU 0", attr.path_mtu = 0);
    WRONG(IBV_QPS_RTR, 0, "MTU 2048", attr.path_mtu = IBV_MTU_2048);
    WRONG(IBV_QPS_RTR, 0, "MTU 4096", attr.path_mtu = IBV_MTU_4096);
    WRONG(IBV_QPS_RTR, 0, "MTU 6", attr.path_mtu = 6);
    WRONG(IBV_QPS_RTR, 0, "max_dest_rd_atomic 0", attr.max_dest_rd_atomic = 0);
    WRONG(IBV_QPS_RTR, 0, "max_dest_rd_atomic 16", attr.max_dest_rd_atomic = 16);
    WRONG(IBV_QPS_RTR, 0, "max_dest_rd_atomic 17", attr.max_dest_rd_atomic = 17);
    WRONG(IBV_QPS_RTR, 0, "max_dest_rd_atomic 128", attr.max_dest_rd_atomic = 128);
    WRONG(IBV_QPS_RTR, 0, "min_rnr_timer 32", attr.min_rnr_timer = 32);
    WRONG(IBV_QPS_RTR, 0, "dest_qp_num 2^24", attr.dest_qp_num = 1 << 24);
    WRONG(IBV_QPS_RTR, 0, "rq_psn 2^24", attr.rq_psn = 1 << 24);
    WRONG(IBV_QPS_RTR, 0, "sl 8", attr.ah_attr.sl = 8);
    WRONG(IBV_QPS_RTR, 0, "sl 16", attr.ah_attr.sl = 16);
    WRONG(IBV_QPS_RTR, 0, "static rate 2", attr.ah_attr.static_rate = 2);
    WRONG(IBV_QPS_RTR, 0, "static rate 200", attr.ah_attr.static_rate = 200);
    WRONG(IBV_QPS_RTR, 0, "port 0 of the path", attr.ah_attr.port_num = 0);
    WRONG(IBV_QPS_RTR, 0, "port 2 of the path", attr.ah_attr.port_num = 2);
    WRONG(IBV_QPS_RTR, 0, "GRH", (attr.ah_attr.is_global = 1, attr.ah_attr.grh.dgid = gid));
    WRONG(IBV_QPS_RTR, 0, "GID index 255", (attr.ah_attr.is_global = 1, attr.ah_attr.grh.sgid_index = 255));
    WRONG(IBV_QPS_RTR, IBV_QP_ALT_PATH, "an alternate path", (attr.alt_ah_attr = attr.ah_attr, attr.alt_port_num = 1));
    WRONG(IBV_QPS_RTS, 0, "max_rd_atomic 0", attr.max_rd_atomic = 0);
    WRONG(IBV_QPS_RTS, 0, "max_rd_atomic 16", attr.max_rd_atomic = 16);
    WRONG(IBV_QPS_RTS, 0, "max_rd_atomic 17", attr.max_rd_atomic = 17);
    WRONG(IBV_QPS_RTS, 0, "timeout 31", attr.timeout = 31);
    WRONG(IBV_QPS_RTS, 0, "timeout 32", attr.timeout = 32);
    WRONG(IBV_QPS_RTS, 0, "retry_cnt 8", attr.retry_cnt = 8);
    WRONG(IBV_QPS_RTS, 0, "rnr_retry 8", attr.rnr_retry = 8);
    WRONG(IBV_QPS_RTS, IBV_QP_CUR_STATE, "the current state", attr.cur_qp_state = IBV_QPS_RTR);
    WRONG(IBV_QPS_RTS, IBV_QP_CUR_STATE, "another current state", attr.cur_qp_state = IBV_QPS_INIT);
    WRONG(IBV_QPS_RTS, IBV_QP_RATE_LIMIT, "a rate limit", attr.rate_limit = 1000);

    qp = at(IBV_QPT_RC, IBV_QPS_INIT);
    attr = attributes(IBV_QPT_RC);
    say(code(ibv_modify_qp(qp, &attr, 0)), "modify_qp rc of nothing");
    attr.qp_state = 7;
    say(code(ibv_modify_qp(qp, &attr, IBV_QP_STATE)), "modify_qp rc to state 7");
    attr.qp_state = IBV_QPS_INIT;
    say(code(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_CAP)), "modify_qp rc, sizes");
    say(code(ibv_modify_qp(qp, &attr, IBV_QP_STATE | 1 << 26)), "modify_qp rc, an unknown attribute");
    ibv_destroy_qp(qp);
}

/* ---- what remains ---- */

static void handles(void)
{
    struct ibv_ah_attr attr = { .dlid = lid, .port_num = 1 };
    struct ibv_ah *ah;

    if (ethernet) {
        attr.is_global = 1;
        attr.grh.dgid = gid;
    }
#define HANDLE(text)                                              \
    do {                                                          \
        errno = 0;                                                \
        ah = ibv_create_ah(pd, &attr);                            \
        say(made(ah), "create_ah" text);                          \
        if (ah)                                                   \
            say(code(ibv_destroy_ah(ah)), "destroy_ah" text);     \
    } while (0)
    HANDLE("");
    attr.port_num = 0;
    HANDLE(" of port 0");
    attr.port_num = 2;
    HANDLE(" of port 2");
    attr.port_num = 1;
    attr.is_global = 1;
    attr.grh.dgid = gid;
    HANDLE(" with a GRH");
    attr.grh.sgid_index = 200;
    HANDLE(" with GID index 200");
#undef HANDLE
}

static void groups(void)
{
    union ibv_gid group = { .raw = { 0xff, 0x12, 0x40, 0x1b, 0xff, 0xff, [15] = 9 } };
    struct ibv_qp *ud = at(IBV_QPT_UD, IBV_QPS_RTS), *rc = at(IBV_QPT_RC, IBV_QPS_INIT);

    say(code(ibv_attach_mcast(rc, &group, 0xc001)), "attach_mcast of an rc");
    say(code(ibv_attach_mcast(ud, &gid, 0xc001)), "attach_mcast to a GID that is none of a group");
    say(code(ibv_attach_mcast(ud, &group, 1)), "attach_mcast to a LID that is none of a group");
    /* RoCE does not look at the LID. */
    if (ethernet)
        say(code(ibv_detach_mcast(ud, &group, 1)), "detach_mcast from that LID");
    say(code(ibv_detach_mcast(ud, &group, 0xc001)), "detach_mcast before");
    say(code(ibv_attach_mcast(ud, &group, 0xc001)), "attach_mcast");
    say(code(ibv_attach_mcast(ud, &group, 0xc001)), "attach_mcast again");
    say(code(ibv_destroy_qp(ud)), "destroy_qp in a group");
    say(code(ibv_detach_mcast(ud, &group, 0xc001)), "detach_mcast");
    say(code(ibv_destroy_qp(ud)), "destroy_qp of no group");
    ibv_destroy_qp(rc);
}

static void xrc(void)
{
    struct ibv_xrcd_init_attr init = { .comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS, .fd = -1 };
    struct ibv_srq_init_attr_ex attr = {
        .attr = { .max_wr = 10, .max_sge = 1 }, .srq_type = IBV_SRQT_XRC, .pd = pd, .cq = cq,
        .comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ,
    };
    struct ibv_srq *srq;

    say(made(ibv_open_xrcd(context, &init)), "open_xrcd without O_CREAT");
    init.oflags = O_CREAT;
    attr.xrcd = ibv_open_xrcd(context, &init);
    say(made(attr.xrcd), "open_xrcd");
    if (!attr.xrcd)
        return;
    srq = ibv_create_srq_ex(context, &attr);
    say(made(srq), "create_srq_ex xrc");
    if (srq) {
        say(code(ibv_close_xrcd(attr.xrcd)), "close_xrcd with an srq");
        say(code(ibv_destroy_srq(srq)), "destroy_srq xrc");
    }
    say(code(ibv_close_xrcd(attr.xrcd)), "close_xrcd");
}

static void rest(void)
{
    struct ibv_flow_attr rule = { .type = IBV_FLOW_ATTR_NORMAL, .size = sizeof(rule), .port = 1 };
    struct ibv_qp *qp = at(IBV_QPT_RC, IBV_QPS_RESET);
    struct ibv_alloc_dm_attr dm = { .length = 64 };
    struct ibv_td_init_attr td = { 0 };
    struct ibv_td *domain = ibv_alloc_td(context, &td);

    say(made(domain), "alloc_td");
    if (domain)
        say(code(ibv_dealloc_td(domain)), "dealloc_td");
    say(made(ibv_create_flow(qp, &rule)), "create_flow of an rc");
    say(made(ibv_alloc_dm(context, &dm)), "alloc_dm");
    ibv_destroy_qp(qp);
}

int main(void)
{
    struct ibv_port_attr port;
    int count;
    struct ibv_device **list = need(ibv_get_device_list(&count), "list of devices");

    if (!count)
        need(NULL, "device");
    context = need(ibv_open_device(list[0]), "context");
    if (ibv_query_port(context, 1, &port) || ibv_query_gid(context, 1, 0, &gid))
        need(NULL, "port");
    ethernet = port.link_layer == IBV_LINK_LAYER_ETHERNET;
    lid = port.lid;
    pd = need(ibv_alloc_pd(context), "domain");
    cq = need(ibv_create_cq(context, 64, NULL, NULL, 0), "CQ");
    mr = need(ibv_reg_mr(pd, memory, sizeof(memory), IBV_ACCESS_LOCAL_WRITE), "memory region");

    limits();
    ports();
    registration();
    windows();
    completion_queues();
    shared_receive_queues();
    queue_pairs();
    transitions(IBV_QPT_RC);
    transitions(IBV_QPT_UC);
    transitions(IBV_QPT_UD);
    queries(IBV_QPT_RC);
    queries(IBV_QPT_UC);
    queries(IBV_QPT_UD);
    wrong_values();
    handles();
    groups();
    xrc();
    rest();

    say(code(ibv_dealloc_pd(pd)), "dealloc_pd of a region and nothing else");
    say(code(ibv_dereg_mr(mr)), "dereg_mr at the end");
    say(code(ibv_destroy_cq(cq)), "destroy_cq at the end");
    say(code(ibv_dealloc_pd(pd)), "dealloc_pd at the end");
    say(code(ibv_close_device(context)), "close_device");
    return 0;
}
