/* The other side of the interoperation test: tag matching as a C program does it, with
 * ibv_post_srq_ops and an extended CQ. */
#include <arpa/inet.h>
#include <endian.h>
#include <infiniband/tm_types.h>
#include "peer.h"

#define SLOTS 40
#define SLOT 256
#define LONGEST 16384
#define SOURCE (SLOTS * SLOT)
#define TARGET (SOURCE + 64 + LONGEST)
#define FINS (TARGET + LONGEST)
#define BYTES (FINS + 64)
#define FIRST_SLOT 1000

static struct ibv_mr *mr;
static struct ibv_cq_ex *tag_cq;
static struct ibv_cq *cq;
static struct ibv_srq *srq;
static struct ibv_qp *in, *out;
static unsigned char *memory;

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
	struct ibv_context *ctx = open_first();
	struct ibv_pd *pd = ibv_alloc_pd(ctx);
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
	/* The device owns the send queue of a queue pair that receives by tag. */
	in = create_for(pd, cq, srq, 0, IBV_ACCESS_REMOTE_READ);
	out = create_for(pd, cq, NULL, 16, IBV_ACCESS_REMOTE_READ);
	for (int i = 0; i < SLOTS; i++)
		post_slot(i);
	printf("here %u %u %u %u\n", lid(ctx), in->qp_num, out->qp_num, PSN);
}

/* Waits for a completion on the CQ of tags. */
static void next(uint64_t *wr_id, unsigned *flags, uint32_t *len, struct ibv_wc_tm_info *info)
{
	struct ibv_poll_cq_attr attr = {};

	while (ibv_start_poll(tag_cq, &attr))
		;
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

/* If the device has read, the FIN comes from the queue pair that got the offer. If software has, it comes on
 * the connection for the other direction. */
static void await_fin(const unsigned char *fin, uint32_t len)
{
	struct ibv_poll_cq_attr attr = {};
	const unsigned char *got = NULL;
	struct ibv_wc wc;
	uint64_t slot = SLOTS;
	uint32_t bytes = 0;

	while (!got) {
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
	struct ibv_sge sge;

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
		check(!post_recv(out, 0, memory + FINS, 64, mr), "ibv_post_recv");
	}
	sge = piece(head - memory, header + (rendezvous ? 0 : len));
	wr.sg_list = &sge;
	check(!ibv_post_send(out, &wr, &bad), "ibv_post_send");
	check(wait_for(cq).opcode == IBV_WC_SEND, "another completion");
	if (rendezvous) {
		head[0] = IBV_TMH_FIN;
		await_fin(head, header);
	}
	printf("sent %u\n", sum(payload, len));
}

static void answer(const char *line)
{
	unsigned port, in_qpn, in_psn, out_qpn, out_psn, context, len;
	uint64_t tag, mask;

	if (sscanf(line, "connect %u %u %u %u %u", &port, &in_qpn, &in_psn, &out_qpn, &out_psn) == 5) {
		join(in, port, out_qpn, out_psn);
		join(out, port, in_qpn, in_psn);
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
