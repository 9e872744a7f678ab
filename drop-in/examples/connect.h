/* Two RC queue pairs of one process that are connected to each other: for the example, and for the tests of the drop-in. */

#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Ends the program with a message unless `ok`. */
static inline void check(int ok, const char *what)
{
	if (!ok) {
		fprintf(stderr, "%s fails\n", what);
		exit(1);
	}
}

static inline struct ibv_context *open_first(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	check(list && list[0], "there is no RDMA device: ibv_get_device_list");
	struct ibv_context *context = ibv_open_device(list[0]);
	check(context != NULL, "ibv_open_device");
	ibv_free_device_list(list);
	return context;
}

static inline struct ibv_qp *create(struct ibv_pd *pd, struct ibv_cq *cq, struct ibv_srq *srq,
				    unsigned depth)
{
	struct ibv_qp_init_attr attr = {
		.send_cq = cq, .recv_cq = cq, .srq = srq, .qp_type = IBV_QPT_RC, .sq_sig_all = 1,
		.cap = { .max_send_wr = depth, .max_recv_wr = srq ? 0 : depth, .max_send_sge = 1,
			 .max_recv_sge = srq ? 0 : 1 },
	};
	struct ibv_qp *qp = ibv_create_qp(pd, &attr);
	check(qp != NULL, "ibv_create_qp");
	return qp;
}

static inline void to_init(struct ibv_qp *qp)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1 };
	check(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
				       IBV_QP_ACCESS_FLAGS), "ibv_modify_qp to INIT");
}

/* Takes a queue pair in INIT to RTS. */
static inline void connect_to(struct ibv_qp *qp, uint32_t peer)
{
	struct ibv_port_attr port;
	union ibv_gid gid;
	check(!ibv_query_port(qp->context, 1, &port), "ibv_query_port");
	check(!ibv_query_gid(qp->context, 1, 0, &gid), "ibv_query_gid");
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_RTR, .path_mtu = port.active_mtu, .dest_qp_num = peer,
		.min_rnr_timer = 1, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7,
		.max_rd_atomic = 1, .max_dest_rd_atomic = 1,
		.ah_attr = { .is_global = 1, .grh = { .dgid = gid, .hop_limit = 1 },
			     .dlid = port.lid, .port_num = 1 },
	};
	check(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU |
				       IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MIN_RNR_TIMER |
				       IBV_QP_MAX_DEST_RD_ATOMIC), "ibv_modify_qp to RTR");
	attr.qp_state = IBV_QPS_RTS;
	check(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
				       IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
				       IBV_QP_MAX_QP_RD_ATOMIC), "ibv_modify_qp to RTS");
}

static inline int post_recv(struct ibv_qp *qp, uint64_t id, void *at, uint32_t size,
			    struct ibv_mr *mr)
{
	struct ibv_sge sge = { (uintptr_t)at, size, mr->lkey };
	struct ibv_recv_wr *bad, wr = { .wr_id = id, .sg_list = &sge, .num_sge = 1 };
	return qp->srq ? ibv_post_srq_recv(qp->srq, &wr, &bad) : ibv_post_recv(qp, &wr, &bad);
}

static inline int post_send(struct ibv_qp *qp, uint64_t id, void *at, uint32_t size,
			    struct ibv_mr *mr)
{
	struct ibv_sge sge = { (uintptr_t)at, size, mr->lkey };
	struct ibv_send_wr *bad,
		wr = { .wr_id = id, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND };
	return ibv_post_send(qp, &wr, &bad);
}

/* Waits for a completion, which must be one of success. */
static inline struct ibv_wc wait_for(struct ibv_cq *cq)
{
	struct ibv_wc wc;
	int polled;
	while ((polled = ibv_poll_cq(cq, 1, &wc)) == 0)
		;
	check(polled == 1, "ibv_poll_cq");
	check(wc.status == IBV_WC_SUCCESS, ibv_wc_status_str(wc.status));
	return wc;
}
