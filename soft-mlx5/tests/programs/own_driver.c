/* A program with a driver of its own: it uses neither libibverbs nor libmlx5, but write() and ioctl() on the uverbs
 * device, sysfs by literal paths, and netlink. Receives datagrams, some of them in GRE tunnels, and sends each of them
 * back. `own_driver N` ends after N datagrams, and prints what it has counted.
 *
 * The calls, and their order, are those of the mlx5 tile of Firedancer (github.com/firedancer-io/firedancer,
 * src/disco/net/mlx5), a validator for Solana. */

#include <dirent.h>
#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/netlink.h>
#include <rdma/ib_user_verbs.h>
#include <rdma/mlx5-abi.h>
#include <rdma/mlx5_user_ioctl_cmds.h>
#include <rdma/mlx5_user_ioctl_verbs.h>
#include <rdma/rdma_netlink.h>
#include <rdma/rdma_user_ioctl_cmds.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#define DEVICE "mlx5_0"
#define DEPTH 64
#define FRAME 2048
#define PORT 9001
/* Datagrams to this port find no receive. */
#define FULL 9002
#define HASH_UDP (MLX5_RX_HASH_SRC_IPV4 | MLX5_RX_HASH_DST_IPV4 | MLX5_RX_HASH_SRC_PORT_UDP | MLX5_RX_HASH_DST_PORT_UDP)
#define TUNNEL_GRE MLX5_IB_TUNNELED_OFFLOADS_GRE

static void check(int is_right, const char *what)
{
    if (!is_right) {
        fprintf(stderr, "own_driver: %s: %s\n", what, strerror(errno));
        exit(1);
    }
}

static void read_file(const char *path, char *text, size_t size)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    check(fd >= 0, path);
    ssize_t count = read(fd, text, size - 1);
    check(count > 0, path);
    text[count] = '\0';
    text[strcspn(text, "\n")] = '\0';
    close(fd);
}

/* Opens the uverbs device of the RDMA device. */
static int open_device(void)
{
    char path[300], text[300];
    ssize_t size = readlink("/sys/class/infiniband/" DEVICE "/device/driver", text, sizeof(text) - 1);
    check(size > 0, "driver");
    text[size] = '\0';
    const char *driver = strrchr(text, '/');
    check(!strcmp(driver ? driver + 1 : text, "mlx5_core"), "another driver");

    DIR *directory = opendir("/sys/class/infiniband_verbs");
    check(directory != NULL, "infiniband_verbs");
    char name[32] = "";
    for (struct dirent *entry; (entry = readdir(directory));) {
        if (strncmp(entry->d_name, "uverbs", 6))
            continue;
        snprintf(path, sizeof(path), "/sys/class/infiniband_verbs/%s/ibdev", entry->d_name);
        read_file(path, text, sizeof(text));
        if (!strcmp(text, DEVICE))
            snprintf(name, sizeof(name), "%.31s", entry->d_name);
    }
    closedir(directory);
    check(name[0], "no uverbs device");
    read_file("/sys/class/infiniband_verbs/abi_version", text, sizeof(text));
    check(atoi(text) == IB_USER_VERBS_ABI_VERSION, "ABI of uverbs");
    snprintf(path, sizeof(path), "/sys/class/infiniband_verbs/%s/abi_version", name);
    read_file(path, text, sizeof(text));
    check(atoi(text) == MLX5_IB_UVERBS_ABI_VERSION, "ABI of mlx5");

    snprintf(path, sizeof(path), "/dev/infiniband/%s", name);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    struct stat stat;
    check(fd >= 0 && !fstat(fd, &stat) && S_ISCHR(stat.st_mode), path);
    return fd;
}

static int device;

/* Runs a command. Its request begins with the header and, unless there is no answer, the answer's address. */
static void command(int number, void *request, size_t size, void *answer, size_t room, const char *name)
{
    struct ib_uverbs_cmd_hdr *header = request;
    uint64_t address = (uintptr_t)answer;
    *header = (struct ib_uverbs_cmd_hdr){ .command = number, .in_words = size / 4, .out_words = room / 4 };
    if (room)
        memcpy(header + 1, &address, sizeof(address));
    check(write(device, request, size) == (ssize_t)size, name);
}

/* As command(), in the extended form. `core` and `core_room` are the sizes without the driver's parts. */
static void extended(int number, void *request, size_t core, size_t size, void *answer, size_t core_room, size_t room,
                     const char *name)
{
    struct { struct ib_uverbs_cmd_hdr cmd; struct ib_uverbs_ex_cmd_hdr ex; } *header = request;
    header->cmd.command = IB_USER_VERBS_CMD_FLAG_EXTENDED | number;
    header->cmd.in_words = (core - sizeof(*header)) / 8;
    header->cmd.out_words = core_room / 8;
    header->ex.response = (uintptr_t)answer;
    header->ex.provider_in_words = (size - core) / 8;
    header->ex.provider_out_words = (room - core_room) / 8;
    check(write(device, request, size) == (ssize_t)size, name);
}

#define HEADER struct ib_uverbs_cmd_hdr cmd
#define EX_HEADER struct ib_uverbs_cmd_hdr cmd; struct ib_uverbs_ex_cmd_hdr ex

static void get_context(void)
{
    struct { HEADER; uint64_t response; struct mlx5_ib_alloc_ucontext_req_v2 mlx5; } request = {
        .mlx5 = { .total_num_bfregs = 16, .num_low_latency_bfregs = 4, .max_cqe_version = 1,
                  .lib_caps = MLX5_LIB_CAP_4K_UAR | MLX5_LIB_CAP_DYN_UAR },
    };
    struct { uint32_t async_fd, vectors; struct mlx5_ib_alloc_ucontext_resp mlx5; } answer = { 0 };
    command(IB_USER_VERBS_CMD_GET_CONTEXT, &request, sizeof(request), &answer, sizeof(answer), "GET_CONTEXT");
    check(answer.mlx5.num_ports >= 1 && answer.mlx5.cqe_version <= 1 && answer.mlx5.log_uar_size == 12 &&
          answer.mlx5.num_uars_per_page == 1 && answer.mlx5.tot_bfregs == 0 &&
          answer.mlx5.eth_min_inline == MLX5_USER_INLINE_MODE_NONE, "properties of the context");
}

static void query_device(void)
{
    struct { EX_HEADER; struct ib_uverbs_ex_query_device query; } request = { 0 };
    struct { struct ib_uverbs_ex_query_device_resp core; struct mlx5_ib_query_device_resp mlx5; } answer = { 0 };
    extended(IB_USER_VERBS_EX_CMD_QUERY_DEVICE, &request, sizeof(request), sizeof(request), &answer,
             sizeof(answer.core), sizeof(answer), "QUERY_DEVICE");
    uint64_t wanted = HASH_UDP | MLX5_RX_HASH_INNER;
    check(answer.mlx5.rss_caps.rx_hash_function & MLX5_RX_HASH_FUNC_TOEPLITZ, "no Toeplitz");
    check((answer.mlx5.rss_caps.rx_hash_fields_mask & wanted) == wanted, "no hash of the inner packet");
    check(answer.mlx5.tunnel_offloads_caps & TUNNEL_GRE, "no GRE");
}

static void query_port(void)
{
    struct { HEADER; uint64_t response; uint8_t port, reserved[7]; } request = { .port = 1 };
    struct ib_uverbs_query_port_resp answer = { 0 };
    command(IB_USER_VERBS_CMD_QUERY_PORT, &request, sizeof(request), &answer, sizeof(answer), "QUERY_PORT");
    check(answer.link_layer == 2, "no Ethernet");
}

static uint32_t alloc_pd(void)
{
    struct { HEADER; uint64_t response; } request = { 0 };
    struct { uint32_t handle; struct mlx5_ib_alloc_pd_resp mlx5; } answer = { 0 };
    command(IB_USER_VERBS_CMD_ALLOC_PD, &request, sizeof(request), &answer, sizeof(answer), "ALLOC_PD");
    return answer.handle;
}

/* Allocates and maps a register; returns its doorbell, and the number of its page. */
static volatile uint64_t *alloc_uar(uint32_t *page)
{
    uint64_t offset = 0;
    uint32_t length = 0;
    struct { struct ib_uverbs_ioctl_hdr header; struct ib_uverbs_attr attrs[5]; } request = {
        .header = { .length = sizeof(request), .object_id = MLX5_IB_OBJECT_UAR, .num_attrs = 5,
                    .method_id = MLX5_IB_METHOD_UAR_OBJ_ALLOC, .driver_id = RDMA_DRIVER_MLX5 },
        .attrs = { { .attr_id = MLX5_IB_ATTR_UAR_OBJ_ALLOC_HANDLE },
                   { .attr_id = MLX5_IB_ATTR_UAR_OBJ_ALLOC_TYPE, .len = 8, .data = MLX5_IB_UAPI_UAR_ALLOC_TYPE_NC },
                   { .attr_id = MLX5_IB_ATTR_UAR_OBJ_ALLOC_MMAP_OFFSET, .len = 8, .data = (uintptr_t)&offset },
                   { .attr_id = MLX5_IB_ATTR_UAR_OBJ_ALLOC_MMAP_LENGTH, .len = 4, .data = (uintptr_t)&length },
                   { .attr_id = MLX5_IB_ATTR_UAR_OBJ_ALLOC_PAGE_ID, .len = 4, .data = (uintptr_t)page } },
    };
    for (int i = 0; i < 5; i++)
        request.attrs[i].flags = UVERBS_ATTR_F_MANDATORY;
    check(!ioctl(device, RDMA_VERBS_IOCTL, &request), "UAR_OBJ_ALLOC");
    check(length == 4096, "bytes of a register page");
    uint8_t *mapped = mmap(NULL, length, PROT_WRITE, MAP_SHARED, device, (off_t)offset);
    check(mapped != MAP_FAILED, "mmap");
    return (volatile uint64_t *)(mapped + 0x800);
}

struct cqe {
    uint8_t bytes[44];
    uint32_t byte_count;
    uint64_t timestamp;
    uint32_t tag;
    uint16_t counter;
    uint8_t signature, op_own;
};

static struct cqe cqes[2][DEPTH] __attribute__((aligned(4096)));
static uint32_t records[5][16] __attribute__((aligned(64)));
static struct { uint32_t byte_count, lkey; uint64_t address; } receives[DEPTH] __attribute__((aligned(4096)));
static uint32_t sends[2][DEPTH][16] __attribute__((aligned(4096)));
static uint8_t unposted[4096] __attribute__((aligned(4096)));
static uint8_t frames[DEPTH][FRAME] __attribute__((aligned(4096)));

static uint32_t create_cq(int which, uint32_t page)
{
    struct { HEADER; uint64_t response, user_handle; uint32_t cqe, vector; int32_t channel; uint32_t reserved;
             struct mlx5_ib_create_cq mlx5; } request = {
        .cqe = DEPTH - 1, .channel = -1,
        .mlx5 = { .buf_addr = (uintptr_t)cqes[which], .db_addr = (uintptr_t)records[which], .cqe_size = 64,
                  .flags = MLX5_IB_CREATE_CQ_FLAGS_UAR_PAGE_INDEX, .uar_page_index = page },
    };
    struct { uint32_t handle, cqe; struct mlx5_ib_create_cq_resp mlx5; } answer = { 0 };
    for (int i = 0; i < DEPTH; i++)
        cqes[which][i].op_own = 0xf1;
    command(IB_USER_VERBS_CMD_CREATE_CQ, &request, sizeof(request), &answer, sizeof(answer), "CREATE_CQ");
    check(answer.cqe == DEPTH - 1, "entries of a CQ");
    return answer.handle;
}

static uint32_t register_frames(uint32_t pd)
{
    struct { HEADER; uint64_t response, start, length, va; uint32_t pd, access; } request = {
        .start = (uintptr_t)frames, .length = sizeof(frames), .va = (uintptr_t)frames, .pd = pd,
        .access = 1 /* IB_ACCESS_LOCAL_WRITE */,
    };
    struct { uint32_t handle, lkey, rkey; } answer = { 0 };
    command(IB_USER_VERBS_CMD_REG_MR, &request, sizeof(request), &answer, sizeof(answer), "REG_MR");
    return answer.lkey;
}

/* Creates a queue pair of frames that sends, and with `receives` also has a receive queue; returns its handle, and its
 * number. */
static uint32_t create_qp(uint32_t pd, uint32_t cq, uint32_t page, uint32_t receives, uint32_t *number)
{
    int which = receives > 0;
    struct { HEADER; uint64_t response, user_handle; uint32_t pd, send_cq, recv_cq, srq, max_send_wr, max_recv_wr,
             max_send_sge, max_recv_sge, max_inline; uint8_t all, type, is_srq, reserved;
             struct mlx5_ib_create_qp mlx5; } request = {
        .pd = pd, .send_cq = cq, .recv_cq = cq, .max_send_wr = DEPTH, .max_send_sge = 1, .max_recv_wr = receives,
        .max_recv_sge = which, .type = 8 /* IB_QPT_RAW_PACKET */,
        .mlx5 = { .db_addr = (uintptr_t)records[which ? 4 : 2], .sq_wqe_count = DEPTH, .rq_wqe_count = receives,
                  .rq_wqe_shift = which ? 4 : 0, .flags = MLX5_QP_FLAG_UAR_PAGE_INDEX, .bfreg_index = page,
                  .buf_addr = which ? (uintptr_t)unposted : 0, .sq_buf_addr = (uintptr_t)sends[which] },
    };
    struct { struct ib_uverbs_create_qp_resp core; struct mlx5_ib_create_qp_resp mlx5; } answer = { 0 };
    command(IB_USER_VERBS_CMD_CREATE_QP, &request, sizeof(request), &answer, sizeof(answer), "CREATE_QP");
    check(answer.core.max_recv_wr >= receives, "receives of a queue pair");
    *number = answer.core.qpn;
    return answer.core.qp_handle;
}

static void modify_qp(uint32_t handle, uint8_t state)
{
    struct { HEADER; struct ib_uverbs_modify_qp core; } request = {
        .core = { .qp_handle = handle, .attr_mask = 1 /* IB_QP_STATE */, .qp_state = state },
    };
    if (state == 1) {
        request.core.attr_mask |= 1 << 5; /* IB_QP_PORT */
        request.core.port_num = 1;
    }
    command(IB_USER_VERBS_CMD_MODIFY_QP, &request, sizeof(request), NULL, 0, "MODIFY_QP");
}

static uint32_t create_wq(uint32_t pd, uint32_t cq)
{
    struct { EX_HEADER; struct ib_uverbs_ex_create_wq core; struct mlx5_ib_create_wq mlx5; } request = {
        .core = { .wq_type = 0, .pd_handle = pd, .cq_handle = cq, .max_wr = DEPTH, .max_sge = 1 },
        .mlx5 = { .buf_addr = (uintptr_t)receives, .db_addr = (uintptr_t)records[3], .rq_wqe_count = DEPTH,
                  .rq_wqe_shift = 4 },
    };
    struct { struct ib_uverbs_ex_create_wq_resp core; struct mlx5_ib_create_wq_resp mlx5; } answer = { 0 };
    extended(IB_USER_VERBS_EX_CMD_CREATE_WQ, &request, sizeof(request) - sizeof(request.mlx5), sizeof(request), &answer,
             sizeof(answer.core), sizeof(answer), "CREATE_WQ");
    struct { EX_HEADER; struct ib_uverbs_ex_modify_wq core; struct mlx5_ib_modify_wq mlx5; } ready = {
        .core = { .attr_mask = 3, .wq_handle = answer.core.wq_handle, .wq_state = 1, .curr_wq_state = 0 },
    };
    extended(IB_USER_VERBS_EX_CMD_MODIFY_WQ, &ready, sizeof(ready) - sizeof(ready.mlx5), sizeof(ready), NULL, 0, 0,
             "MODIFY_WQ");
    return answer.core.wq_handle;
}

static uint32_t create_table(uint32_t wq)
{
    struct { EX_HEADER; uint32_t comp_mask, log_size, wqs[2]; } request = { .wqs = { wq } };
    struct ib_uverbs_ex_create_rwq_ind_table_resp answer = { 0 };
    extended(IB_USER_VERBS_EX_CMD_CREATE_RWQ_IND_TBL, &request, sizeof(request), sizeof(request), &answer,
             sizeof(answer), sizeof(answer), "CREATE_RWQ_IND_TBL");
    return answer.ind_tbl_handle;
}

static uint32_t create_rss(uint32_t pd, uint32_t table, uint64_t fields, uint32_t flags)
{
    struct { EX_HEADER; struct ib_uverbs_ex_create_qp core; struct mlx5_ib_create_qp_rss mlx5; } request = {
        .core = { .pd_handle = pd, .qp_type = 8, .comp_mask = IB_UVERBS_CREATE_QP_MASK_IND_TABLE,
                  .rwq_ind_tbl_handle = table },
        .mlx5 = { .rx_hash_fields_mask = fields, .rx_hash_function = MLX5_RX_HASH_FUNC_TOEPLITZ, .rx_key_len = 40,
                  .rx_hash_key = { 0x6d, 0x5a }, .flags = flags },
    };
    struct { struct ib_uverbs_ex_create_qp_resp core; struct mlx5_ib_create_qp_resp mlx5; } answer = { 0 };
    extended(IB_USER_VERBS_EX_CMD_CREATE_QP, &request, sizeof(request) - sizeof(request.mlx5), sizeof(request), &answer,
             sizeof(answer.core), sizeof(answer), "CREATE_QP of a hash");
    return answer.core.base.qp_handle;
}

#define FLOW EX_HEADER; uint32_t comp_mask, qp, type; uint16_t size, priority; uint8_t specs, reserved[2], port; \
             uint32_t flags; struct ib_uverbs_flow_spec_eth eth; struct ib_uverbs_flow_spec_ipv4 ipv4
#define SPEC(kind, of) .type = kind, .size = sizeof(struct ib_uverbs_flow_spec_##of)
#define IP { .type = 0x20, .size = sizeof(struct ib_uverbs_flow_spec_eth), \
             .val = { .ether_type = htobe16(0x800) }, .mask = { .ether_type = 0xffff } }

static void create_udp_flow(uint32_t qp, uint16_t port)
{
    struct { FLOW; struct ib_uverbs_flow_spec_tcp_udp udp; uint32_t counters, end; } request = {
        .qp = qp, .specs = 3, .port = 1, .eth = IP, .ipv4 = { SPEC(0x30, ipv4) },
        .udp = { SPEC(0x41, tcp_udp), .val = { .dst_port = htobe16(port) }, .mask = { .dst_port = 0xffff } },
    };
    struct ib_uverbs_create_flow_resp answer = { 0 };
    request.size = sizeof(request.eth) + sizeof(request.ipv4) + sizeof(request.udp);
    extended(IB_USER_VERBS_EX_CMD_CREATE_FLOW, &request, sizeof(request) - 8, sizeof(request), &answer, sizeof(answer),
             sizeof(answer), "CREATE_FLOW");
}

static void create_gre_flow(uint32_t rss)
{
    struct { FLOW; struct ib_uverbs_flow_spec_gre gre; struct ib_uverbs_flow_spec_ipv4 inner_ipv4;
             struct ib_uverbs_flow_spec_tcp_udp inner_udp; uint32_t counters, end; } request = {
        .qp = rss, .specs = 5, .port = 1, .eth = IP,
        .ipv4 = { SPEC(0x30, ipv4), .val = { .proto = 47 }, .mask = { .proto = 0xff } },
        .gre = { SPEC(0x51, gre), .val = { .protocol = htobe16(0x800) }, .mask = { .protocol = 0xffff } },
        .inner_ipv4 = { SPEC(0x130, ipv4), .val = { .proto = 17 }, .mask = { .proto = 0xff } },
        .inner_udp = { SPEC(0x141, tcp_udp), .val = { .dst_port = htobe16(PORT) }, .mask = { .dst_port = 0xffff } },
    };
    struct ib_uverbs_create_flow_resp answer = { 0 };
    request.size = (char *)&request.counters - (char *)&request.eth;
    extended(IB_USER_VERBS_EX_CMD_CREATE_FLOW, &request, sizeof(request) - 8, sizeof(request), &answer, sizeof(answer),
             sizeof(answer), "CREATE_FLOW of a tunnel");
}

static int netlink;
static uint8_t answers[8192] __attribute__((aligned(8)));

/* Sends a netlink request with attributes of 32 bits, and receives the first datagram of the answer. */
static struct nlmsghdr *ask(int number, int flags, const uint32_t (*attributes)[2], int count)
{
    struct { struct nlmsghdr header; struct { struct nlattr head; uint32_t value; } attributes[5]; } request = {
        .header = { .nlmsg_len = 16 + 8 * count, .nlmsg_type = RDMA_NL_GET_TYPE(RDMA_NL_NLDEV, number),
                    .nlmsg_flags = NLM_F_REQUEST | flags, .nlmsg_seq = 7 },
    };
    for (int i = 0; i < count; i++) {
        request.attributes[i].head = (struct nlattr){ .nla_len = 8, .nla_type = attributes[i][0] };
        request.attributes[i].value = attributes[i][1];
    }
    struct sockaddr_nl kernel = { .nl_family = AF_NETLINK };
    ssize_t size = request.header.nlmsg_len;
    check(sendto(netlink, &request, size, 0, (struct sockaddr *)&kernel, sizeof(kernel)) == size, "sendto");
    check(recvfrom(netlink, answers, sizeof(answers), MSG_TRUNC, NULL, NULL) > 0, "recvfrom");
    struct nlmsghdr *answer = (struct nlmsghdr *)answers;
    if (answer->nlmsg_type == NLMSG_ERROR) {
        errno = -((struct nlmsgerr *)(answer + 1))->error;
        check(0, "netlink");
    }
    check(answer->nlmsg_seq == 7 && answer->nlmsg_type == request.header.nlmsg_type, "answer of netlink");
    return answer;
}

/* Finds an attribute among those from `start` on. */
static struct nlattr *find(void *start, int size, int type)
{
    while (size >= (int)sizeof(struct nlattr)) {
        struct nlattr *attribute = start;
        int length = NLA_ALIGN(attribute->nla_len);
        if ((attribute->nla_type & NLA_TYPE_MASK) == type)
            return attribute;
        if (length == 0)
            break;
        start = (uint8_t *)start + length;
        size -= length;
    }
    check(0, "a missing attribute");
    return NULL;
}

#define INSIDE(attribute, type) find(attribute + 1, (attribute)->nla_len - 4, type)

/* Binds a counter to a queue pair; returns its number. */
static uint32_t bind_counter(uint32_t index, uint32_t number)
{
    const uint32_t attributes[][2] = {
        { RDMA_NLDEV_ATTR_STAT_MODE, RDMA_COUNTER_MODE_MANUAL }, { RDMA_NLDEV_ATTR_STAT_RES, RDMA_NLDEV_ATTR_RES_QP },
        { RDMA_NLDEV_ATTR_DEV_INDEX, index }, { RDMA_NLDEV_ATTR_PORT_INDEX, 1 }, { RDMA_NLDEV_ATTR_RES_LQPN, number },
    };
    struct nlmsghdr *answer = ask(RDMA_NLDEV_CMD_STAT_SET, NLM_F_ACK, attributes, 5);
    uint32_t id = *(uint32_t *)(find(answer + 1, answer->nlmsg_len - 16, RDMA_NLDEV_ATTR_STAT_COUNTER_ID) + 1);
    /* The acknowledgement comes in the same datagram or in the next. */
    recv(netlink, answers, sizeof(answers), MSG_DONTWAIT);
    return id;
}

static uint64_t out_of_buffer(uint32_t index, uint32_t id)
{
    const uint32_t attributes[][2] = {
        { RDMA_NLDEV_ATTR_DEV_INDEX, index }, { RDMA_NLDEV_ATTR_PORT_INDEX, 1 },
        { RDMA_NLDEV_ATTR_STAT_RES, RDMA_NLDEV_ATTR_RES_QP },
    };
    struct nlmsghdr *answer = ask(RDMA_NLDEV_CMD_STAT_GET, NLM_F_DUMP, attributes, 3);
    struct nlattr *table = find(answer + 1, answer->nlmsg_len - 16, RDMA_NLDEV_ATTR_STAT_COUNTER);
    struct nlattr *entry = INSIDE(table, RDMA_NLDEV_ATTR_STAT_COUNTER_ENTRY);
    check(*(uint32_t *)(INSIDE(entry, RDMA_NLDEV_ATTR_STAT_COUNTER_ID) + 1) == id, "another counter");
    entry = INSIDE(INSIDE(entry, RDMA_NLDEV_ATTR_STAT_HWCOUNTERS), RDMA_NLDEV_ATTR_STAT_HWCOUNTER_ENTRY);
    check(!strcmp((char *)(INSIDE(entry, RDMA_NLDEV_ATTR_STAT_HWCOUNTER_ENTRY_NAME) + 1), "out_of_buffer"), "name");
    return *(uint64_t *)(INSIDE(entry, RDMA_NLDEV_ATTR_STAT_HWCOUNTER_ENTRY_VALUE) + 1);
}

static void post(uint32_t index, uint32_t lkey)
{
    receives[index % DEPTH].byte_count = htobe32(FRAME);
    receives[index % DEPTH].lkey = htobe32(lkey);
    receives[index % DEPTH].address = htobe64((uintptr_t)frames[index % DEPTH]);
}

/* Returns the CQE with this running index, if the device has written it. */
static struct cqe *poll(int which, uint32_t index)
{
    struct cqe *cqe = &cqes[which][index % DEPTH];
    uint8_t op_own = __atomic_load_n(&cqe->op_own, __ATOMIC_ACQUIRE);
    if ((op_own & 1) != (index / DEPTH & 1) || op_own >> 4 == 15)
        return NULL;
    check(op_own >> 4 == (which ? 0 : 2), "opcode of a CQE");
    return cqe;
}

int main(int argc, char **argv)
{
    uint32_t wanted = argc > 1 ? atoi(argv[1]) : 1, page = 0, number = 0;
    device = open_device();
    get_context();
    query_device();
    query_port();
    uint32_t pd = alloc_pd();
    volatile uint64_t *doorbell = alloc_uar(&page);
    uint32_t receive_cq = create_cq(0, page), send_cq = create_cq(1, page), lkey = register_frames(pd);
    uint32_t full_number, sender = create_qp(pd, send_cq, page, 0, &number);
    uint32_t full = create_qp(pd, send_cq, page, 4, &full_number);
    for (uint8_t state = 1; state <= 3; state++) {
        modify_qp(sender, state);
        modify_qp(full, state);
    }
    uint32_t table = create_table(create_wq(pd, receive_cq));
    uint32_t outer = create_rss(pd, table, HASH_UDP, 0);
    uint32_t inner = create_rss(pd, table, HASH_UDP | MLX5_RX_HASH_INNER, MLX5_QP_FLAG_TUNNEL_OFFLOADS);

    netlink = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_RDMA);
    struct sockaddr_nl local = { .nl_family = AF_NETLINK };
    check(netlink >= 0 && !bind(netlink, (struct sockaddr *)&local, sizeof(local)), "socket");
    struct nlmsghdr *found = ask(RDMA_NLDEV_CMD_GET, NLM_F_DUMP, NULL, 0);
    uint32_t index = *(uint32_t *)(find(found + 1, found->nlmsg_len - 16, RDMA_NLDEV_ATTR_DEV_INDEX) + 1);
    recv(netlink, answers, sizeof(answers), MSG_DONTWAIT);
    uint32_t id = bind_counter(index, full_number);

    uint32_t posted = 0, received = 0, sent = 0, tunnels = 0;
    while (posted < DEPTH)
        post(posted++, lkey);
    __atomic_store_n(&records[3][0], htobe32(posted & 0xffff), __ATOMIC_RELEASE);
    create_gre_flow(inner);
    create_udp_flow(full, FULL);
    create_udp_flow(outer, PORT);

    while (received < wanted) {
        struct cqe *cqe = poll(0, received);
        if (!cqe)
            continue;
        uint8_t *frame = frames[received % DEPTH];
        uint32_t bytes = be32toh(cqe->byte_count);
        check(be16toh(cqe->counter) == (received & 0xffff), "a CQE out of order");
        uint32_t header = frame[23] == 47 ? 24 : 0;
        tunnels += header > 0;
        check(bytes >= 50 + header && frame[36 + header] == PORT >> 8 && frame[37 + header] == (PORT & 0xff), "a frame");
        received++;
        /* Sends it back, before its buffer is posted again. */
        uint8_t address[6];
        memcpy(address, frame, 6);
        memcpy(frame, frame + 6, 6);
        memcpy(frame + 6, address, 6);
        uint32_t *wqe = sends[0][sent % DEPTH];
        memset(wqe, 0, 64);
        wqe[0] = htobe32((sent & 0xffff) << 8 | 0x0a);
        wqe[1] = htobe32(number << 8 | 3);
        wqe[2] = htobe32(8);
        wqe[8] = htobe32(bytes);
        wqe[9] = htobe32(lkey);
        uint64_t at = htobe64((uintptr_t)frame), first;
        memcpy(&wqe[10], &at, 8);
        memcpy(&first, wqe, 8);
        sent++;
        __atomic_store_n(&records[2][1], htobe32(sent & 0xffff), __ATOMIC_RELEASE);
        __atomic_thread_fence(__ATOMIC_SEQ_CST);
        *doorbell = first;
        while (!poll(1, sent - 1))
            ;
        __atomic_store_n(&records[1][0], htobe32(sent & 0xffffff), __ATOMIC_RELEASE);
        __atomic_store_n(&records[0][0], htobe32(received & 0xffffff), __ATOMIC_RELEASE);
        post(posted++, lkey);
        __atomic_store_n(&records[3][0], htobe32(posted & 0xffff), __ATOMIC_RELEASE);
    }
    printf("%u datagrams, %u in tunnels, %u sent back, out_of_buffer %lu\n", received, tunnels, sent,
           (unsigned long)out_of_buffer(index, id));
    return 0;
}
