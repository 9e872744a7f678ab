/* A program with plugins that bring their own copies of libibverbs and libmlx5. See tests/drop_in.rs. */

#include <dlfcn.h>

#ifdef HOST
#include <stdio.h>

/* Sends with each plugin in turn. */
int main(int argc, char **argv)
{
	void (*play[4])(void);
	for (int i = 1; i < argc; i++) {
		void *plugin = dlopen(argv[i], RTLD_NOW | RTLD_LOCAL);
		if (!plugin) {
			fprintf(stderr, "%s\n", dlerror());
			return 1;
		}
		((void (*)(void))dlsym(plugin, "set_up"))();
		play[i] = (void (*)(void))dlsym(plugin, "play");
	}
	for (int round = 0; round < 2; round++)
		for (int i = 1; i < argc; i++)
			play[i]();
	return 0;
}
#else
#include "../../drop-in/examples/connect.h"
#include <infiniband/mlx5dv.h>

static char memory[2][32];
static struct ibv_cq *cq;
static struct ibv_mr *mr;
static struct ibv_qp *qp;

void set_up(void)
{
	struct ibv_context *context = open_first();
	struct ibv_pd *pd = ibv_alloc_pd(context);
	cq = ibv_create_cq(context, 2, NULL, NULL, 0);
	mr = ibv_reg_mr(pd, memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE);
	check(cq && mr, "creating the objects");
	qp = create(pd, cq, NULL, 1);
	to_init(qp);
	connect_to(qp, qp->qp_num);

	/* Others, whose memory the program asks for. */
	struct ibv_cq *other_cq = ibv_create_cq(context, 1, NULL, NULL, 0);
	struct ibv_qp *other = create(pd, other_cq, NULL, 1);
	struct mlx5dv_qp out = { 0 };
	struct mlx5dv_obj obj = { .qp = { other, &out } };
	check(!mlx5dv_init_obj(&obj, MLX5DV_OBJ_QP) && out.sq.buf, "mlx5dv_init_obj");
	struct ibv_cq *last_cq = ibv_create_cq(context, 1, NULL, NULL, 0);
	struct ibv_qp_init_attr_ex attr = {
		.send_cq = last_cq, .recv_cq = last_cq, .pd = pd, .qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1 },
		.comp_mask = IBV_QP_INIT_ATTR_PD,
	};
	struct mlx5dv_qp_init_attr more = { 0 };
	check(mlx5dv_create_qp(context, &attr, &more) != NULL, "mlx5dv_create_qp");
}

void play(void)
{
	for (int i = 0; i < 100; i++) {
		check(!post_recv(qp, 2 * i, memory[0], sizeof *memory, mr), "ibv_post_recv");
		check(!post_send(qp, 2 * i + 1, memory[1], sizeof *memory, mr), "ibv_post_send");
		uint64_t ids = wait_for(cq).wr_id + wait_for(cq).wr_id;
		check(ids == 4u * i + 1, "a completion");
	}
}
#endif
