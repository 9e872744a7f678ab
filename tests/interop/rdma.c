/* The other side of the interoperation test of RDMA and atomics, as a C program posts them with ibv_post_send. It does
 * what standard input says, and answers each line with one line. */
#include <infiniband/verbs.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define OPEN 8192 /* bytes that the peer may use; behind them as many of our own */
#define PSN 0x321

static struct ibv_cq *cq;
static struct ibv_mr *mr;
static struct ibv_qp *qp;
static unsigned char *memory;
static uint64_t remote_addr;
static uint32_t rkey;

static void check(int good, const char *what)
{
	if (!good) {
		printf("error %s\n", what);
		exit(1);
	}
}

static void set_up(void)
{
	struct ibv_device **devices = ibv_get_device_list(NULL);
	struct ibv_qp_init_attr init = { .qp_type = IBV_QPT_RC };
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1 };
	struct ibv_port_attr port;
	struct ibv_context *ctx;
	struct ibv_pd *pd;

	check(devices && devices[0], "no device");
	ctx = ibv_open_device(devices[0]);
	check(ctx != NULL, "ibv_open_device");
	pd = ibv_alloc_pd(ctx);
	memory = aligned_alloc(4096, 2 * OPEN);
	memset(memory, 0, 2 * OPEN);
	attr.qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
	mr = ibv_reg_mr(pd, memory, 2 * OPEN, IBV_ACCESS_LOCAL_WRITE | attr.qp_access_flags);
	cq = ibv_create_cq(ctx, 64, NULL, NULL, 0);
	check(mr && cq, "ibv_reg_mr");
	init.send_cq = init.recv_cq = cq;
	init.cap.max_send_wr = init.cap.max_recv_wr = 16;
	init.cap.max_send_sge = init.cap.max_recv_sge = 1;
	qp = ibv_create_qp(pd, &init);
	check(qp != NULL, "ibv_create_qp");
	check(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS),
	      "INIT");
	for (int i = 0; i < 8; i++) {
		struct ibv_recv_wr wr = { .num_sge = 0 }, *bad;

		check(!ibv_post_recv(qp, &wr, &bad), "ibv_post_recv");
	}
	check(!ibv_query_port(ctx, 1, &port), "ibv_query_port");
	printf("ready %u %u %u %" PRIuPTR " %u\n", port.lid, qp->qp_num, PSN, (uintptr_t)memory, mr->rkey);
}

static void join(unsigned lid, unsigned qpn, unsigned psn)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = qpn, .rq_psn = psn,
		.max_dest_rd_atomic = 4, .min_rnr_timer = 12, .ah_attr = { .dlid = lid, .port_num = 1 },
	};

	check(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
			     IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER), "RTR");
	memset(&attr, 0, sizeof(attr));
	attr.qp_state = IBV_QPS_RTS;
	attr.sq_psn = PSN;
	attr.max_rd_atomic = 4;
	attr.timeout = 14;
	attr.retry_cnt = 6;
	attr.rnr_retry = 7;
	check(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC |
			     IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY), "RTS");
}

static struct ibv_wc completion(void)
{
	time_t began = time(NULL);
	struct ibv_wc wc;

	while (ibv_poll_cq(cq, 1, &wc) == 0)
		check(time(NULL) < began + 60, "nothing completes");
	return wc;
}

/* Executes a request of the bytes behind OPEN, and tells how it ended. */
static void execute(struct ibv_send_wr *wr, uint32_t len)
{
	struct ibv_sge sge = { .addr = (uintptr_t)memory + OPEN, .length = len, .lkey = mr->lkey };
	struct ibv_send_wr *bad;

	wr->sg_list = &sge;
	wr->num_sge = 1;
	wr->send_flags = IBV_SEND_SIGNALED;
	check(!ibv_post_send(qp, wr, &bad), "ibv_post_send");
	printf("done %d", completion().status);
}

static void hex(const unsigned char *bytes, unsigned len)
{
	putchar(' ');
	while (len--)
		printf("%02x", *bytes++);
}

static void answer(const char *line)
{
	struct ibv_send_wr wr = { .opcode = IBV_WR_RDMA_WRITE };
	unsigned long long at, a, b;
	unsigned len, imm, lid, qpn, psn;
	uint64_t old;

	if (sscanf(line, "connect %u %u %u %llu %u", &lid, &qpn, &psn, &at, &rkey) == 5) {
		remote_addr = at;
		join(lid, qpn, psn);
		printf("connected");
	} else if (sscanf(line, "fill %llu %u %u", &at, &len, &imm) == 3) {
		for (unsigned i = 0; i < len; i++)
			memory[at + i] = i * 7 + imm;
		printf("filled");
	} else if (sscanf(line, "look %llu %u", &at, &len) == 2) {
		printf("bytes");
		hex(memory + at, len);
	} else if (sscanf(line, "write %llu %u %u", &at, &len, &imm) >= 2) {
		wr.wr.rdma.remote_addr = remote_addr + at;
		wr.wr.rdma.rkey = rkey;
		if (sscanf(line, "write %*u %*u %u", &imm) == 1) {
			wr.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
			wr.imm_data = __builtin_bswap32(imm);
		}
		execute(&wr, len);
	} else if (sscanf(line, "read %llu %u", &at, &len) == 2) {
		wr.opcode = IBV_WR_RDMA_READ;
		wr.wr.rdma.remote_addr = remote_addr + at;
		wr.wr.rdma.rkey = rkey;
		execute(&wr, len);
		hex(memory + OPEN, len);
	} else if (sscanf(line, "add %llu %llu", &at, &a) == 2 || sscanf(line, "swap %llu %llu %llu", &at, &a, &b) == 3) {
		wr.opcode = line[0] == 'a' ? IBV_WR_ATOMIC_FETCH_AND_ADD : IBV_WR_ATOMIC_CMP_AND_SWP;
		wr.wr.atomic.remote_addr = remote_addr + at;
		wr.wr.atomic.rkey = rkey;
		wr.wr.atomic.compare_add = a;
		wr.wr.atomic.swap = line[0] == 'a' ? 0 : b;
		execute(&wr, 8);
		memcpy(&old, memory + OPEN, 8);
		printf(" %" PRIu64, old);
	} else if (!strncmp(line, "imm", 3)) {
		struct ibv_wc wc = completion();

		printf("imm %d %u %u", wc.status, __builtin_bswap32(wc.imm_data), wc.byte_len);
	} else {
		printf("error what is this: %s", line);
	}
	printf("\n");
}

int main(void)
{
	char line[256];

	setvbuf(stdout, NULL, _IOLBF, 0);
	set_up();
	while (fgets(line, sizeof(line), stdin))
		answer(line);
	return 0;
}
