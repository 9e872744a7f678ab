/* The other side of the interoperation test: tag matching as a C program does it, with ibv_post_srq_ops and
 * an extended CQ. It does what standard input says, and answers each line with one line. */
#include <arpa/inet.h>
#include <endian.h>
#include <infiniband/tm_types.h>
#include <infiniband/verbs.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define SLOTS 40
#define SLOT 256
#define LONGEST 16384
#define SOURCE (SLOTS * SLOT)
#define TARGET (SOURCE + 64 + LONGEST)
#define FINS (TARGET + LONGEST)
#define BYTES (FINS + 64)
#define PSN 0x123
#define FIRST_SLOT 1000

static struct ibv_context *ctx;
static struct ibv_pd *pd;
static struct ibv_mr *mr;
static struct ibv_cq_ex *tag_cq;
static struct ibv_cq *cq;
static struct ibv_srq *srq;
static struct ibv_qp *in, *out;
static unsigned char *memory;

static void check(int good, const char *what)
{
	if (!good) {
		printf("error %s\n", what);
		exit(1);
	}
}

static struct ibv_qp *queue_pair(struct ibv_srq *tagged)
{
	struct ibv_qp_init_attr init = { .send_cq = cq, .recv_cq = cq, .srq = tagged, .qp_type = IBV_QPT_RC };
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = IBV_ACCESS_REMOTE_READ,
	};
	struct ibv_qp *qp;

	/* The send queue of one that receives by tag is the device's. */
	init.cap.max_send_wr = tagged ? 0 : 16;
	init.cap.max_recv_wr = tagged ? 0 : 16;
	init.cap.max_send_sge = init.cap.max_recv_sge = 1;
	qp = ibv_create_qp(pd, &init);
	check(qp != NULL, "ibv_create_qp");
	check(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS),
	      "INIT");
	return qp;
}

static void join(struct ibv_qp *qp, unsigned lid, unsigned qpn, unsigned psn)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = qpn, .rq_psn = psn,
		.max_dest_rd_atomic = 1, .min_rnr_timer = 12, .ah_attr = { .dlid = lid, .port_num = 1 },
	};

	check(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
			     IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER), "RTR");
	memset(&attr, 0, sizeof(attr));
	attr.qp_state = IBV_QPS_RTS;
	attr.sq_psn = PSN;
	attr.max_rd_atomic = 1;
	attr.timeout = 14;
	attr.retry_cnt = 6;
	attr.rnr_retry = 7;
	check(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC |
			     IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY), "RTS");
}

static struct ibv_sge piece(size_t at, uint32_t len)
{
	struct ibv_sge sge = { .addr = (uintptr_t)memory + at, .length = len, .lkey = mr->lkey };

	return sge;
}

static void post_slot(uint64_t slot)
{
	struct ibv_sge sge = piece(slot * SLOT, SLOT);
	struct ibv_recv_wr wr = { .wr_id = FIRST_SLOT + slot, .sg_list = &sge, .num_sge = 1 }, *bad;

	check(!ibv_post_srq_recv(srq, &wr, &bad), "ibv_post_srq_recv");
}

static void set_up(void)
{
	struct ibv_device **devices = ibv_get_device_list(NULL);
	struct ibv_cq_init_attr_ex cq_attr = {
		.cqe = 255, .wc_flags = IBV_WC_EX_WITH_BYTE_LEN | IBV_WC_EX_WITH_TM_INFO,
	};
	struct ibv_srq_init_attr_ex srq_attr = {
		.attr = { .max_wr = 64, .max_sge = 1 },
		.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_CQ |
			     IBV_SRQ_INIT_ATTR_TM,
		.srq_type = IBV_SRQT_TM,
		.tm_cap = { .max_num_tags = 16, .max_ops = 64 },
	};

	check(devices && devices[0], "no device");
	ctx = ibv_open_device(devices[0]);
	check(ctx != NULL, "ibv_open_device");
	pd = ibv_alloc_pd(ctx);
	memory = aligned_alloc(4096, (BYTES + 4095) / 4096 * 4096);
	mr = ibv_reg_mr(pd, memory, BYTES, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ);
	check(mr != NULL, "ibv_reg_mr");
	cq = ibv_create_cq(ctx, 64, NULL, NULL, 0);
	tag_cq = ibv_create_cq_ex(ctx, &cq_attr);
	check(cq && tag_cq, "ibv_create_cq_ex");
	srq_attr.pd = pd;
	srq_attr.cq = ibv_cq_ex_to_cq(tag_cq);
	srq = ibv_create_srq_ex(ctx, &srq_attr);
	check(srq != NULL, "ibv_create_srq_ex");
	in = queue_pair(srq);
	out = queue_pair(NULL);
	for (int i = 0; i < SLOTS; i++)
		post_slot(i);
}

/* Waits for a completion on the CQ of tags. */
static void next(uint64_t *wr_id, unsigned *flags, uint32_t *len, struct ibv_wc_tm_info *info)
{
	struct ibv_poll_cq_attr attr = {};
	time_t end = time(NULL) + 20;

	while (ibv_start_poll(tag_cq, &attr))
		check(time(NULL) < end, "no completion");
	check(tag_cq->status == IBV_WC_SUCCESS, ibv_wc_status_str(tag_cq->status));
	*wr_id = tag_cq->wr_id;
	*flags = ibv_wc_read_wc_flags(tag_cq);
	*len = ibv_wc_read_byte_len(tag_cq);
	if (*flags & IBV_WC_TM_MATCH)
		ibv_wc_read_tm_info(tag_cq, info);
	ibv_end_poll(tag_cq);
}

static void add(uint64_t tag, uint64_t mask)
{
	struct ibv_sge sge = piece(TARGET, LONGEST);
	struct ibv_ops_wr wr = { .wr_id = 1, .opcode = IBV_WR_TAG_ADD, .flags = IBV_OPS_SIGNALED }, *bad;
	struct ibv_wc_tm_info info;
	uint64_t wr_id;
	uint32_t len;
	unsigned flags;

	wr.tm.add.recv_wr_id = 2;
	wr.tm.add.sg_list = &sge;
	wr.tm.add.num_sge = 1;
	wr.tm.add.tag = tag;
	wr.tm.add.mask = mask;
	check(!ibv_post_srq_ops(srq, &wr, &bad), "ibv_post_srq_ops");
	next(&wr_id, &flags, &len, &info);
	check(wr_id == 1, "not the completion of the add");
	printf("added\n");
}

static unsigned sum(const unsigned char *bytes, uint32_t len)
{
	unsigned sum = 0;

	for (uint32_t i = 0; i < len; i++)
		sum = sum * 31 + bytes[i];
	return sum;
}

static void receive(void)
{
	struct ibv_wc_tm_info info = {};
	unsigned flags = 0;
	uint64_t wr_id;
	uint32_t len;

	while (!(flags & IBV_WC_TM_DATA_VALID)) {
		next(&wr_id, &flags, &len, &info);
		check(wr_id == 2, "not the tagged receive");
	}
	printf("got %" PRIu64 " %u %u %u\n", info.tag, info.priv, len, sum(memory + TARGET, len));
}

static void complete(unsigned want, struct ibv_wc *wc)
{
	time_t end = time(NULL) + 20;

	do {
		check(time(NULL) < end, "no completion");
	} while (ibv_poll_cq(cq, 1, wc) == 0);
	check(wc->status == IBV_WC_SUCCESS, ibv_wc_status_str(wc->status));
	check(wc->opcode == want, "another completion");
}

/* A FIN comes back from the queue pair that got the offer when the device there has read, and on the
 * connection for the other direction when software has. */
static void await_fin(const unsigned char *fin, uint32_t len)
{
	struct ibv_poll_cq_attr attr = {};
	time_t end = time(NULL) + 20;
	const unsigned char *got = NULL;
	struct ibv_wc wc;
	uint64_t slot = SLOTS;
	uint32_t bytes = 0;

	while (!got) {
		check(time(NULL) < end, "no FIN");
		if (ibv_poll_cq(cq, 1, &wc) == 1) {
			check(wc.status == IBV_WC_SUCCESS && wc.opcode == IBV_WC_RECV, "another completion");
			got = memory + FINS;
			bytes = wc.byte_len;
		} else if (!ibv_start_poll(tag_cq, &attr)) {
			check(ibv_wc_read_opcode(tag_cq) == IBV_WC_TM_NO_TAG, "another completion");
			slot = tag_cq->wr_id - FIRST_SLOT;
			got = memory + slot * SLOT;
			bytes = ibv_wc_read_byte_len(tag_cq);
			ibv_end_poll(tag_cq);
		}
	}
	check(bytes == len && !memcmp(fin, got, len), "another FIN");
	if (slot < SLOTS)
		post_slot(slot);
}

static void send_message(int rendezvous, uint64_t tag, unsigned context, uint32_t len)
{
	unsigned char *payload = memory + SOURCE + 64, *head;
	struct ibv_tmh tmh = { .opcode = rendezvous ? IBV_TMH_RNDV : IBV_TMH_EAGER };
	uint32_t header = sizeof(tmh) + (rendezvous ? sizeof(struct ibv_rvh) : 0);
	struct ibv_send_wr wr = { .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED, .num_sge = 1 }, *bad;
	struct ibv_sge sge, fin = piece(FINS, 64);
	struct ibv_recv_wr recv = { .sg_list = &fin, .num_sge = 1 }, *bad_recv;
	struct ibv_wc wc;

	for (uint32_t i = 0; i < len; i++)
		payload[i] = i * 7 + context;
	head = payload - header;
	tmh.app_ctx = htonl(context);
	tmh.tag = htobe64(tag);
	memcpy(head, &tmh, sizeof(tmh));
	if (rendezvous) {
		struct ibv_rvh rvh = {
			.va = htobe64((uintptr_t)payload), .rkey = htonl(mr->rkey), .len = htonl(len),
		};

		memcpy(head + sizeof(tmh), &rvh, sizeof(rvh));
		check(!ibv_post_recv(out, &recv, &bad_recv), "ibv_post_recv");
	}
	sge = piece(head - memory, header + (rendezvous ? 0 : len));
	wr.sg_list = &sge;
	check(!ibv_post_send(out, &wr, &bad), "ibv_post_send");
	complete(IBV_WC_SEND, &wc);
	if (rendezvous) {
		head[0] = IBV_TMH_FIN;
		await_fin(head, header);
	}
	printf("sent %u\n", sum(payload, len));
}

int main(void)
{
	unsigned lid, in_qpn, in_psn, out_qpn, out_psn, context, len;
	struct ibv_port_attr port;
	uint64_t tag, mask;
	char line[256];

	setvbuf(stdout, NULL, _IOLBF, 0);
	set_up();
	check(!ibv_query_port(ctx, 1, &port), "ibv_query_port");
	printf("here %u %u %u %u\n", port.lid, in->qp_num, out->qp_num, PSN);
	while (fgets(line, sizeof(line), stdin)) {
		if (sscanf(line, "connect %u %u %u %u %u", &lid, &in_qpn, &in_psn, &out_qpn, &out_psn) == 5) {
			join(in, lid, out_qpn, out_psn);
			join(out, lid, in_qpn, in_psn);
			printf("connected\n");
		} else if (sscanf(line, "add %" SCNu64 " %" SCNu64, &tag, &mask) == 2) {
			add(tag, mask);
		} else if (!strncmp(line, "receive", 7)) {
			receive();
		} else if (sscanf(line, "send %" SCNu64 " %u %u", &tag, &context, &len) == 3) {
			send_message(0, tag, context, len);
		} else if (sscanf(line, "offer %" SCNu64 " %u %u", &tag, &context, &len) == 3) {
			send_message(1, tag, context, len);
		} else {
			check(0, line);
		}
	}
	return 0;
}
