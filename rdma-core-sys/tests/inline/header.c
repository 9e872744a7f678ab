/* The verbs that the headers define as static inline, made callable. */
#include <infiniband/verbs.h>
#include <infiniband/mlx5dv.h>

#define WRAP(type, name, parameters, arguments) \
	type header_##name parameters { return name arguments; }

/* Entries of the extended context. */
WRAP(int, ibv_query_port,
     (struct ibv_context *c, uint8_t port, struct ibv_port_attr *a), (c, port, a))
WRAP(int, ibv_query_device_ex,
     (struct ibv_context *c, const struct ibv_query_device_ex_input *i,
      struct ibv_device_attr_ex *a), (c, i, a))
WRAP(int, ibv_query_rt_values_ex, (struct ibv_context *c, struct ibv_values_ex *v), (c, v))
WRAP(int, ibv_advise_mr,
     (struct ibv_pd *pd, enum ibv_advise_mr_advice a, uint32_t f, struct ibv_sge *l, uint32_t n),
     (pd, a, f, l, n))
WRAP(struct ibv_td *, ibv_alloc_td, (struct ibv_context *c, struct ibv_td_init_attr *a), (c, a))
WRAP(int, ibv_dealloc_td, (struct ibv_td *td), (td))
WRAP(struct ibv_pd *, ibv_alloc_parent_domain,
     (struct ibv_context *c, struct ibv_parent_domain_init_attr *a), (c, a))
WRAP(struct ibv_xrcd *, ibv_open_xrcd,
     (struct ibv_context *c, struct ibv_xrcd_init_attr *a), (c, a))
WRAP(int, ibv_close_xrcd, (struct ibv_xrcd *x), (x))
WRAP(struct ibv_cq_ex *, ibv_create_cq_ex,
     (struct ibv_context *c, struct ibv_cq_init_attr_ex *a), (c, a))
WRAP(int, ibv_modify_cq, (struct ibv_cq *cq, struct ibv_modify_cq_attr *a), (cq, a))
WRAP(struct ibv_qp *, ibv_create_qp_ex,
     (struct ibv_context *c, struct ibv_qp_init_attr_ex *a), (c, a))
WRAP(struct ibv_qp *, ibv_open_qp, (struct ibv_context *c, struct ibv_qp_open_attr *a), (c, a))
WRAP(int, ibv_modify_qp_rate_limit,
     (struct ibv_qp *qp, struct ibv_qp_rate_limit_attr *a), (qp, a))
WRAP(struct ibv_srq *, ibv_create_srq_ex,
     (struct ibv_context *c, struct ibv_srq_init_attr_ex *a), (c, a))
WRAP(int, ibv_get_srq_num, (struct ibv_srq *srq, uint32_t *n), (srq, n))
WRAP(int, ibv_post_srq_ops,
     (struct ibv_srq *srq, struct ibv_ops_wr *op, struct ibv_ops_wr **bad), (srq, op, bad))
WRAP(int, ibv_modify_wq, (struct ibv_wq *wq, struct ibv_wq_attr *a), (wq, a))
WRAP(int, ibv_destroy_wq, (struct ibv_wq *wq), (wq))
WRAP(struct ibv_rwq_ind_table *, ibv_create_rwq_ind_table,
     (struct ibv_context *c, struct ibv_rwq_ind_table_init_attr *a), (c, a))
WRAP(int, ibv_destroy_rwq_ind_table, (struct ibv_rwq_ind_table *t), (t))
WRAP(struct ibv_flow *, ibv_create_flow, (struct ibv_qp *qp, struct ibv_flow_attr *a), (qp, a))
WRAP(int, ibv_destroy_flow, (struct ibv_flow *f), (f))

/* The structures whose size the verbs tell the provider: newer headers may append to them. */
const size_t header_size_of_ibv_port_attr = sizeof(struct ibv_port_attr);
const size_t header_size_of_ibv_device_attr_ex = sizeof(struct ibv_device_attr_ex);

/* Entries of the context itself. */
WRAP(int, ibv_poll_cq, (struct ibv_cq *cq, int n, struct ibv_wc *wc), (cq, n, wc))
WRAP(int, ibv_req_notify_cq, (struct ibv_cq *cq, int solicited), (cq, solicited))
WRAP(int, ibv_post_srq_recv,
     (struct ibv_srq *srq, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad), (srq, wr, bad))
WRAP(int, ibv_post_send,
     (struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad), (qp, wr, bad))
WRAP(int, ibv_post_recv,
     (struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad), (qp, wr, bad))

WRAP(struct ibv_mw *, ibv_alloc_mw, (struct ibv_pd *pd, enum ibv_mw_type t), (pd, t))
WRAP(int, ibv_dealloc_mw, (struct ibv_mw *mw), (mw))
WRAP(int, ibv_bind_mw,
     (struct ibv_qp *qp, struct ibv_mw *mw, struct ibv_mw_bind *b), (qp, mw, b))
WRAP(uint32_t, ibv_inc_rkey, (uint32_t key), (key))

/* Entries of an extended completion queue. */
WRAP(struct ibv_cq *, ibv_cq_ex_to_cq, (struct ibv_cq_ex *cq), (cq))
WRAP(int, ibv_start_poll, (struct ibv_cq_ex *cq, struct ibv_poll_cq_attr *a), (cq, a))
WRAP(int, ibv_next_poll, (struct ibv_cq_ex *cq), (cq))
WRAP(void, ibv_end_poll, (struct ibv_cq_ex *cq), (cq))
WRAP(enum ibv_wc_opcode, ibv_wc_read_opcode, (struct ibv_cq_ex *cq), (cq))
WRAP(uint32_t, ibv_wc_read_vendor_err, (struct ibv_cq_ex *cq), (cq))
WRAP(uint32_t, ibv_wc_read_byte_len, (struct ibv_cq_ex *cq), (cq))
WRAP(__be32, ibv_wc_read_imm_data, (struct ibv_cq_ex *cq), (cq))
WRAP(uint32_t, ibv_wc_read_invalidated_rkey, (struct ibv_cq_ex *cq), (cq))
WRAP(uint32_t, ibv_wc_read_qp_num, (struct ibv_cq_ex *cq), (cq))
WRAP(uint32_t, ibv_wc_read_src_qp, (struct ibv_cq_ex *cq), (cq))
WRAP(unsigned int, ibv_wc_read_wc_flags, (struct ibv_cq_ex *cq), (cq))
WRAP(uint32_t, ibv_wc_read_slid, (struct ibv_cq_ex *cq), (cq))
WRAP(uint8_t, ibv_wc_read_sl, (struct ibv_cq_ex *cq), (cq))
WRAP(uint8_t, ibv_wc_read_dlid_path_bits, (struct ibv_cq_ex *cq), (cq))
WRAP(uint64_t, ibv_wc_read_completion_ts, (struct ibv_cq_ex *cq), (cq))
WRAP(uint64_t, ibv_wc_read_completion_wallclock_ns, (struct ibv_cq_ex *cq), (cq))
WRAP(uint16_t, ibv_wc_read_cvlan, (struct ibv_cq_ex *cq), (cq))
WRAP(uint32_t, ibv_wc_read_flow_tag, (struct ibv_cq_ex *cq), (cq))
WRAP(void, ibv_wc_read_tm_info, (struct ibv_cq_ex *cq, struct ibv_wc_tm_info *i), (cq, i))

/* Entries of an extended queue pair. */
WRAP(void, ibv_wr_start, (struct ibv_qp_ex *qp), (qp))
WRAP(int, ibv_wr_complete, (struct ibv_qp_ex *qp), (qp))
WRAP(void, ibv_wr_abort, (struct ibv_qp_ex *qp), (qp))
WRAP(void, ibv_wr_send, (struct ibv_qp_ex *qp), (qp))
WRAP(void, ibv_wr_send_imm, (struct ibv_qp_ex *qp, __be32 imm), (qp, imm))
WRAP(void, ibv_wr_send_inv, (struct ibv_qp_ex *qp, uint32_t key), (qp, key))
WRAP(void, ibv_wr_rdma_write, (struct ibv_qp_ex *qp, uint32_t key, uint64_t addr), (qp, key, addr))
WRAP(void, ibv_wr_rdma_write_imm,
     (struct ibv_qp_ex *qp, uint32_t key, uint64_t addr, __be32 imm), (qp, key, addr, imm))
WRAP(void, ibv_wr_rdma_read, (struct ibv_qp_ex *qp, uint32_t key, uint64_t addr), (qp, key, addr))
WRAP(void, ibv_wr_atomic_cmp_swp,
     (struct ibv_qp_ex *qp, uint32_t key, uint64_t addr, uint64_t compare, uint64_t swap),
     (qp, key, addr, compare, swap))
WRAP(void, ibv_wr_atomic_fetch_add,
     (struct ibv_qp_ex *qp, uint32_t key, uint64_t addr, uint64_t add), (qp, key, addr, add))
WRAP(void, ibv_wr_bind_mw,
     (struct ibv_qp_ex *qp, struct ibv_mw *mw, uint32_t key, const struct ibv_mw_bind_info *i),
     (qp, mw, key, i))
WRAP(void, ibv_wr_local_inv, (struct ibv_qp_ex *qp, uint32_t key), (qp, key))
WRAP(void, ibv_wr_set_ud_addr,
     (struct ibv_qp_ex *qp, struct ibv_ah *ah, uint32_t qpn, uint32_t qkey), (qp, ah, qpn, qkey))
WRAP(void, ibv_wr_set_xrc_srqn, (struct ibv_qp_ex *qp, uint32_t srqn), (qp, srqn))
WRAP(void, ibv_wr_set_sge,
     (struct ibv_qp_ex *qp, uint32_t key, uint64_t addr, uint32_t length), (qp, key, addr, length))
WRAP(void, ibv_wr_set_sge_list,
     (struct ibv_qp_ex *qp, size_t n, const struct ibv_sge *l), (qp, n, l))
WRAP(void, ibv_wr_set_inline_data, (struct ibv_qp_ex *qp, void *a, size_t n), (qp, a, n))
WRAP(void, ibv_wr_set_inline_data_list,
     (struct ibv_qp_ex *qp, size_t n, const struct ibv_data_buf *l), (qp, n, l))

/* Over functions of the library. */
WRAP(int, ibv_query_gid_ex,
     (struct ibv_context *c, uint32_t port, uint32_t index, struct ibv_gid_entry *e, uint32_t f),
     (c, port, index, e, f))
WRAP(ssize_t, ibv_query_gid_table,
     (struct ibv_context *c, struct ibv_gid_entry *e, size_t n, uint32_t f), (c, e, n, f))
WRAP(int, ibv_is_qpt_supported, (uint32_t caps, enum ibv_qp_type type), (caps, type))
WRAP(uint64_t, mlx5dv_ts_to_ns, (struct mlx5dv_clock_info *i, uint64_t ts), (i, ts))

/* The macros look whether the flags are a constant: these are. */
struct ibv_mr *header_ibv_reg_mr(struct ibv_pd *pd, void *addr, size_t length, unsigned int access)
{
	switch (access) {
	case IBV_ACCESS_LOCAL_WRITE:
		return ibv_reg_mr(pd, addr, length, IBV_ACCESS_LOCAL_WRITE);
	case IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_RELAXED_ORDERING:
		return ibv_reg_mr(pd, addr, length,
				  IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_RELAXED_ORDERING);
	}
	return NULL;
}

struct ibv_mr *header_ibv_reg_mr_iova(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova,
				      unsigned int access)
{
	switch (access) {
	case IBV_ACCESS_LOCAL_WRITE:
		return ibv_reg_mr_iova(pd, addr, length, iova, IBV_ACCESS_LOCAL_WRITE);
	case IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_RELAXED_ORDERING:
		return ibv_reg_mr_iova(pd, addr, length, iova,
				       IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_RELAXED_ORDERING);
	}
	return NULL;
}
