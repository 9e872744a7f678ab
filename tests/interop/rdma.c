/* The other side of the interoperation test of RDMA and atomics, as a C program posts them with
 * ibv_post_send. */
#include "peer.h"

#define OPEN 8192 /* bytes that the peer may use; after them as many of our own */

static struct ibv_cq *cq;
static struct ibv_mr *mr;
static struct ibv_qp *qp;
static unsigned char *memory;
static uint64_t remote_addr;
static uint32_t rkey;

static void set_up(void)
{
	const int access = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
	struct ibv_context *context = open_first();
	struct ibv_pd *pd = ibv_alloc_pd(context);
	memory = aligned_alloc(4096, 2 * OPEN);
	memset(memory, 0, 2 * OPEN);
	mr = ibv_reg_mr(pd, memory, 2 * OPEN, IBV_ACCESS_LOCAL_WRITE | access);
	cq = ibv_create_cq(context, 64, NULL, NULL, 0);
	check(mr && cq, "ibv_reg_mr");
	qp = create_for(pd, cq, NULL, 16, access);
	for (int i = 0; i < 8; i++)
		check(!post_recv(qp, 0, memory + OPEN, 8, mr), "ibv_post_recv");
	printf("ready %u %u %u %" PRIuPTR " %u\n", lid(context), qp->qp_num, PSN, (uintptr_t)memory, mr->rkey);
}

/* The next completion. The peer checks its status. */
static struct ibv_wc completion(void)
{
	struct ibv_wc wc;
	while (ibv_poll_cq(cq, 1, &wc) == 0)
		;
	return wc;
}

/* Executes a request with the bytes after OPEN, and prints its status. */
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
	unsigned len, imm, port, qpn, psn;
	uint64_t old;

	if (sscanf(line, "connect %u %u %u %llu %u", &port, &qpn, &psn, &at, &rkey) == 5) {
		remote_addr = at;
		join(qp, port, qpn, psn);
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
