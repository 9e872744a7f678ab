/*
 * A library that gives one of its queue pairs to doorbell, and leaves the rest of the process to libmlx5.
 *
 *	cc attach.c $(pkg-config --cflags --libs doorbell-drop-in) -libverbs -o attach
 *	DOORBELL_LOG=1 ./attach
 */

#include <doorbell.h>

#include "connect.h"

enum { SIZE = 64, SLOTS = 16, MESSAGES = 1000 };

int main(void)
{
	struct ibv_context *context = open_first();
	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct ibv_cq *cq = ibv_create_cq(context, 2 * SLOTS, NULL, NULL, 0);
	struct ibv_cq *other_cq = ibv_create_cq(context, SLOTS, NULL, NULL, 0);
	struct ibv_srq_init_attr srq_attr = { .attr = { .max_wr = SLOTS, .max_sge = 1 } };
	struct ibv_srq *srq = ibv_create_srq(pd, &srq_attr);
	check(pd && cq && other_cq && srq, "creating the objects");
	struct ibv_qp *qp = create(pd, cq, srq, SLOTS), *other = create(pd, other_cq, NULL, SLOTS);

	/* With it go its CQ and its SRQ. On failure it works on, with libmlx5. */
	int attached = !doorbell_attach_qp(qp);

	static char memory[SLOTS + 1][SIZE];
	struct ibv_mr *mr = ibv_reg_mr(pd, memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE);
	check(mr != NULL, "ibv_reg_mr");
	to_init(qp);
	to_init(other);
	for (int i = 0; i < SLOTS; i++)
		check(!post_recv(qp, i, memory[i], SIZE, mr), "ibv_post_srq_recv");
	connect_to(qp, other->qp_num);
	connect_to(other, qp->qp_num);

	/* From here on everything is plain verbs. */
	char *out = memory[SLOTS];
	for (int i = 0; i < MESSAGES; i++) {
		memset(out, i, SIZE);
		check(!post_send(other, i, out, SIZE, mr), "ibv_post_send");
		struct ibv_wc wc = wait_for(cq);
		check(wc.byte_len == SIZE && !memcmp(memory[wc.wr_id], out, SIZE), "the message");
		check(!post_recv(qp, wc.wr_id, memory[wc.wr_id], SIZE, mr), "ibv_post_srq_recv");
		check(wait_for(other_cq).wr_id == (uint64_t)i, "the order of sends");
	}
	check(!ibv_destroy_qp(qp) && !ibv_destroy_qp(other) && !ibv_destroy_srq(srq), "destroying");
	check(!ibv_destroy_cq(cq) && !ibv_destroy_cq(other_cq) && !ibv_dereg_mr(mr), "destroying");
	check(!ibv_dealloc_pd(pd) && !ibv_close_device(context), "closing");
	printf("%d messages received %s\n", MESSAGES, attached ? "by doorbell" : "by libmlx5");
	return 0;
}
