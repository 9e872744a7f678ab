/* For programs with a peer in another process. They execute the lines of standard input, and answer each with one. */
#include "../../drop-in/examples/connect.h"
#include <inttypes.h>

enum { PSN = 0x321 };

/* Creates a queue pair in INIT with this access for the peer. Sends are not all signaled, so that answers go to memory
 * and not to CQEs. */
static inline struct ibv_qp *create_for(struct ibv_pd *pd, struct ibv_cq *cq, struct ibv_srq *srq, unsigned depth,
					int access)
{
	struct ibv_qp_init_attr init = {
		.send_cq = cq, .recv_cq = cq, .srq = srq, .qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = depth, .max_recv_wr = depth, .max_send_sge = 1, .max_recv_sge = 1 },
	};
	struct ibv_qp *qp = ibv_create_qp(pd, &init);
	struct ibv_qp_attr attr = { .qp_access_flags = access };
	check(qp != NULL, "ibv_create_qp");
	to_init(qp);
	check(!ibv_modify_qp(qp, &attr, IBV_QP_ACCESS_FLAGS), "ibv_modify_qp in INIT");
	return qp;
}

static inline unsigned lid(struct ibv_context *context)
{
	struct ibv_port_attr port;
	check(!ibv_query_port(context, 1, &port), "ibv_query_port");
	return port.lid;
}

/* Takes a queue pair in INIT to RTS. */
static inline void join(struct ibv_qp *qp, unsigned lid, unsigned qpn, unsigned psn)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = qpn, .rq_psn = psn,
		.max_dest_rd_atomic = 4, .min_rnr_timer = 12, .ah_attr = { .dlid = lid, .port_num = 1 },
		.sq_psn = PSN, .max_rd_atomic = 4, .timeout = 14, .retry_cnt = 6, .rnr_retry = 7,
	};
	check(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
			     IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER), "RTR");
	attr.qp_state = IBV_QPS_RTS;
	check(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC |
			     IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY), "RTS");
}

static void set_up(void);
static void answer(const char *line);

int main(void)
{
	char line[256];
	setvbuf(stdout, NULL, _IOLBF, 0);
	set_up();
	while (fgets(line, sizeof(line), stdin))
		answer(line);
	return 0;
}
