/* Unusual uses of a data path; the first argument selects one. See tests/drop_in.rs. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#ifdef HOST
/* Links no libibverbs: it comes with a plugin. Its symbols are visible to the plugin only. */
#include <stdio.h>

int main(int argc, char **argv)
{
	void *plugin = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
	int (*run)(int, char **) = plugin ? (int (*)(int, char **))dlsym(plugin, "main") : NULL;
	if (!run) {
		fprintf(stderr, "%s\n", dlerror());
		return 1;
	}
	int code = run(argc - 1, argv + 1);
	dlclose(plugin);
	if (dlopen("libdoorbell_drop_in.so", RTLD_NOW | RTLD_NOLOAD))
		printf("doorbell stays\n");
	return code;
}
#else
#include "../../drop-in/examples/connect.h"

#ifdef __SANITIZE_THREAD__
/* Code of LLVM calls these. The runtime of GCC lacks them, and intercepts those of libc. */
void *__tsan_memcpy(void *to, const void *from, size_t size) { return memcpy(to, from, size); }
void *__tsan_memmove(void *to, const void *from, size_t size) { return memmove(to, from, size); }
void *__tsan_memset(void *to, int byte, size_t size) { return memset(to, byte, size); }
#endif

enum { SIZE = 32, DEPTH = 32, THREADS = 4, EACH = 500 };

/* Two connected queue pairs on one CQ, and their objects. */
struct pair {
	struct ibv_context *context;
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	struct ibv_qp *from, *to;
	struct ibv_mr *mr;
	char memory[2 * DEPTH][SIZE];
};

static void join_pair(struct pair *p)
{
	to_init(p->from);
	to_init(p->to);
	connect_to(p->from, p->to->qp_num);
	connect_to(p->to, p->from->qp_num);
}

static struct pair *make(unsigned depth)
{
	struct pair *p = aligned_alloc(4096, (sizeof *p + 4095) / 4096 * 4096);
	memset(p, 0, sizeof *p);
	p->context = open_first();
	p->pd = ibv_alloc_pd(p->context);
	p->cq = ibv_create_cq(p->context, 2 * depth, NULL, NULL, 0);
	check(p->pd && p->cq, "creating the objects");
	p->from = create(p->pd, p->cq, NULL, depth);
	p->to = create(p->pd, p->cq, NULL, depth);
	p->mr = ibv_reg_mr(p->pd, p->memory, sizeof p->memory, IBV_ACCESS_LOCAL_WRITE);
	check(p->mr != NULL, "ibv_reg_mr");
	join_pair(p);
	return p;
}

/* Creates a queue pair for these operations of `ibv_wr_*` that sends to itself. */
static struct ibv_qp_ex *create_for(struct pair *p, struct ibv_cq *cq, unsigned depth, uint64_t operations)
{
	struct ibv_qp_init_attr_ex attr = {
		.send_cq = cq, .recv_cq = cq, .pd = p->pd, .qp_type = IBV_QPT_RC, .sq_sig_all = 1,
		.cap = { .max_send_wr = depth, .max_recv_wr = depth, .max_send_sge = 1, .max_recv_sge = 1 },
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
		.send_ops_flags = operations,
	};
	struct ibv_qp *qp = ibv_create_qp_ex(p->context, &attr);
	check(qp != NULL, "ibv_create_qp_ex");
	to_init(qp);
	connect_to(qp, qp->qp_num);
	return ibv_qp_to_qp_ex(qp);
}

static struct ibv_qp_ex *create_ex(struct pair *p, struct ibv_cq *cq, unsigned depth)
{
	return create_for(p, cq, depth, IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_RDMA_WRITE);
}

/* Sends a message in a batch of its own. */
static void send_by_builder(struct pair *p, struct ibv_qp_ex *ex, uint64_t id)
{
	ibv_wr_start(ex);
	ex->wr_id = id;
	ex->wr_flags = 0;
	ibv_wr_send(ex);
	ibv_wr_set_sge(ex, p->mr->lkey, (uintptr_t)p->memory[0], SIZE);
	check(!ibv_wr_complete(ex), "ibv_wr_complete");
}

/* Sends `count` messages one by one. */
static void play(struct pair *p, int count)
{
	char *out = p->memory[0], *in = p->memory[1];
	for (int i = 1; i <= count; i++) {
		memset(out, i, SIZE);
		check(!post_recv(p->to, 2 * i, in, SIZE, p->mr), "ibv_post_recv");
		check(!post_send(p->from, 2 * i + 1, out, SIZE, p->mr), "ibv_post_send");
		uint64_t ids = wait_for(p->cq).wr_id + wait_for(p->cq).wr_id;
		check(ids == 4u * i + 1 && !memcmp(in, out, SIZE), "the message");
	}
}

static void end(struct pair *p)
{
	check(!ibv_destroy_qp(p->from) && !ibv_destroy_qp(p->to), "ibv_destroy_qp");
	check(!ibv_destroy_cq(p->cq) && !ibv_dereg_mr(p->mr) && !ibv_dealloc_pd(p->pd), "destroying");
	check(!ibv_close_device(p->context), "ibv_close_device");
	free(p);
}

static void join(pid_t child)
{
	int status;
	check(waitpid(child, &status, 0) == child && status == 0, "the child");
}

/* A child that cannot destroy its copies of the parent's objects and ends by exit(), and a child that opens the device itself while the
 * parent uses it. */
static void forked(void)
{
	check(!ibv_fork_init(), "ibv_fork_init");
	struct pair *p = make(DEPTH);
	play(p, 50);
	check(!post_recv(p->to, 0, p->memory[1], SIZE, p->mr), "ibv_post_recv");
	/* Registered memory is the parent's alone. */
	struct ibv_qp *qp = p->from;
	pid_t child = fork();
	if (child == 0) {
		check(ibv_destroy_qp(qp) != 0, "ibv_destroy_qp in a child: it fails");
		exit(0);
	}
	join(child);
	child = fork();
	if (child == 0) {
		struct pair *own = make(DEPTH);
		play(own, 200);
		end(own);
		exit(0);
	}
	/* The receive that was posted before is still posted. */
	check(!post_send(p->from, 1, p->memory[0], SIZE, p->mr), "ibv_post_send");
	check(wait_for(p->cq).wr_id + wait_for(p->cq).wr_id == 1, "the receive of before");
	play(p, 200);
	join(child);
	end(p);
}

/* Each context numbers its objects. */
static void contexts(void)
{
	struct pair *one = make(DEPTH), *other = make(2);
	play(one, 50);
	play(other, 50);
	end(one);
	play(other, 50);
	one = make(2);
	play(one, 50);
	end(other);
	play(one, 50);
	end(one);
}

#ifdef ATTACH
#include <doorbell.h>
#include <errno.h>

/* Objects that are attached too late are refused and go on working. A queue pair may be built for ibv_wr_*. */
static void attached(void)
{
	struct pair *p = make(2);
	check(!doorbell_attach_cq(p->cq) && !doorbell_attach_cq(p->cq), "doorbell_attach_cq");
	check(!doorbell_attach_qp(p->from) && !doorbell_attach_qp(p->to), "doorbell_attach_qp");
	play(p, 50);
	/* A queue pair that is created on the CQ is attached. */
	ibv_destroy_qp(p->to);
	p->to = create(p->pd, p->cq, NULL, 2);
	struct ibv_qp_attr reset = { .qp_state = IBV_QPS_RESET };
	check(!ibv_modify_qp(p->from, &reset, IBV_QP_STATE), "ibv_modify_qp to RESET");
	join_pair(p);
	play(p, 50);
	check(ibv_resize_cq(p->cq, 100) == EOPNOTSUPP, "refusing to resize an attached CQ");
	end(p);
	p = make(DEPTH);
	check(!post_recv(p->to, 0, p->memory[1], SIZE, p->mr), "ibv_post_recv");
	check(doorbell_attach_qp(p->to) == EOPNOTSUPP, "refusing a queue pair in use");
	check(!post_send(p->from, 1, p->memory[0], SIZE, p->mr), "ibv_post_send");
	check(wait_for(p->cq).wr_id + wait_for(p->cq).wr_id == 1, "the receive of before");
	check(doorbell_attach_qp(p->from) == EOPNOTSUPP, "refusing a queue pair in use");
	struct ibv_cq *cq = ibv_create_cq(p->context, 4, NULL, NULL, 0);
	struct ibv_qp *failed = create(p->pd, cq, NULL, 2);
	struct ibv_qp_attr error = { .qp_state = IBV_QPS_ERR };
	to_init(failed);
	check(!ibv_modify_qp(failed, &error, IBV_QP_STATE), "ibv_modify_qp to ERR");
	check(doorbell_attach_qp(failed) == EOPNOTSUPP, "refusing a queue pair in the error state");
	check(!ibv_destroy_qp(failed) && !doorbell_attach_cq(cq) && !ibv_destroy_cq(cq), "its CQ, which is as before");
	/* libmlx5 still removes the CQEs of a queue pair that is reset. */
	check(!post_recv(p->to, 0, p->memory[1], SIZE, p->mr), "ibv_post_recv");
	check(!post_send(p->from, 1, p->memory[0], SIZE, p->mr), "ibv_post_send");
	usleep(20000);
	check(!ibv_modify_qp(p->from, &reset, IBV_QP_STATE), "ibv_modify_qp to RESET");
	check(!ibv_modify_qp(p->to, &reset, IBV_QP_STATE), "ibv_modify_qp to RESET");
	join_pair(p);
	play(p, 50);
	cq = ibv_create_cq(p->context, 4, NULL, NULL, 0);
	struct ibv_qp_ex *ex = create_ex(p, cq, 2);
	check(!doorbell_attach_qp(&ex->qp_base), "doorbell_attach_qp");
	for (int i = 0; i < 50; i++) {
		check(!post_recv(&ex->qp_base, 2 * i, p->memory[1], SIZE, p->mr), "ibv_post_recv");
		send_by_builder(p, ex, 2 * i + 1);
		check(wait_for(cq).wr_id + wait_for(cq).wr_id == 4u * i + 1, "the completions");
	}
	check(!ibv_destroy_qp(&ex->qp_base) && !ibv_destroy_cq(cq), "destroying");
	end(p);
}

static struct pair *reusing;
static struct ibv_cq *dying, *born;
static struct ibv_qp *on_born;

void __libc_free(void *memory);

/* As soon as a CQ that is being destroyed is freed, another one gets its memory and its handle. */
void free(void *memory)
{
	__libc_free(memory);
	if (memory && memory == dying) {
		dying = NULL;
		born = ibv_create_cq(reusing->context, 4, NULL, NULL, 0);
		check(born != NULL, "ibv_create_cq");
		on_born = create(reusing->pd, born, NULL, 1);
		check(!doorbell_attach_qp(on_born), "doorbell_attach_qp");
	}
}

static void attached_while_destroyed(void)
{
	int count = 0;
	reusing = make(2);
	born = ibv_create_cq(reusing->context, 4, NULL, NULL, 0);
	check(born && !doorbell_attach_cq(born), "doorbell_attach_cq");
	for (int i = 0; i < 50; i++) {
		struct ibv_cq *before = born;
		dying = born;
		check(!ibv_destroy_cq(dying), "ibv_destroy_cq");
		count += born == before;
		to_init(on_born);
		connect_to(on_born, on_born->qp_num);
		check(!post_recv(on_born, 1, reusing->memory[1], SIZE, reusing->mr), "ibv_post_recv");
		check(!post_send(on_born, 2, reusing->memory[0], SIZE, reusing->mr), "ibv_post_send");
		check(wait_for(born).wr_id + wait_for(born).wr_id == 3, "the completions");
		check(!ibv_destroy_qp(on_born), "ibv_destroy_qp");
	}
	check(count > 0, "a CQ at the address of one that is being destroyed");
	check(!ibv_destroy_cq(born), "ibv_destroy_cq");
	end(reusing);
}
#endif

static struct pair *shared;
static atomic_int seen[2][THREADS * EACH];
static atomic_int completed, credits;

/* Posts to both queue pairs and polls their CQ, like three other threads. Posts that find no room are repeated. */
static void *hammer(void *number)
{
	int first = (int)(intptr_t)number * EACH, receives = 0, sends = 0;
	while (atomic_load(&completed) < 2 * THREADS * EACH) {
		if (receives < EACH) {
			int id = first + receives;
			if (!post_recv(shared->to, id, shared->memory[1 + id % DEPTH], SIZE, shared->mr)) {
				receives++;
				atomic_fetch_add(&credits, 1);
			}
		}
		if (sends < EACH && atomic_fetch_sub(&credits, 1) > 0) {
			int id = first + sends;
			if (!post_send(shared->from, THREADS * EACH + id, shared->memory[0], SIZE, shared->mr))
				sends++;
			else
				atomic_fetch_add(&credits, 1);
		} else if (sends < EACH) {
			atomic_fetch_add(&credits, 1);
		}
		struct ibv_wc wc[3];
		int polled = ibv_poll_cq(shared->cq, 3, wc);
		check(polled >= 0, "ibv_poll_cq");
		for (int i = 0; i < polled; i++) {
			int is_send = wc[i].wr_id >= THREADS * EACH;
			check(wc[i].status == IBV_WC_SUCCESS, ibv_wc_status_str(wc[i].status));
			check(!atomic_fetch_add(&seen[is_send][wc[i].wr_id - is_send * THREADS * EACH], 1),
			      "a request completes twice: ibv_poll_cq");
		}
		if (polled)
			atomic_fetch_add(&completed, polled);
		else
			sched_yield();
	}
	return NULL;
}

static void threads(void)
{
	pthread_t thread[THREADS];
	shared = make(DEPTH);
	for (intptr_t i = 0; i < THREADS; i++)
		check(!pthread_create(&thread[i], NULL, hammer, (void *)i), "pthread_create");
	for (int i = 0; i < THREADS; i++)
		check(!pthread_join(thread[i], NULL), "pthread_join");
	check(completed == 2 * THREADS * EACH, "the number of completions");
	end(shared);
}

static void *destroy(void *qp)
{
	check(!ibv_destroy_qp(qp), "ibv_destroy_qp");
	return NULL;
}

/* Polls the CQ of a queue pair while the kernel waits to destroy it, because one of its events is not acknowledged. */
static void destroyed_with_event(int is_used)
{
	pthread_t thread;
	struct ibv_async_event event;
	struct ibv_qp_attr error = { .qp_state = IBV_QPS_ERR };
	struct pair *p = make(2);
	struct ibv_srq_init_attr attr = { .attr = { .max_wr = 2, .max_sge = 1 } };
	struct ibv_srq *srq = ibv_create_srq(p->pd, &attr);
	check(srq != NULL, "ibv_create_srq");
	struct ibv_qp *qp = create(p->pd, p->cq, srq, 2);
	uint32_t number = qp->qp_num;
	to_init(qp);
	connect_to(qp, number);
	check(!ibv_modify_qp(qp, &error, IBV_QP_STATE), "ibv_modify_qp to ERR");
	check(!ibv_get_async_event(p->context, &event), "ibv_get_async_event");
	check(event.event_type == IBV_EVENT_QP_LAST_WQE_REACHED, "the event: IBV_EVENT_QP_LAST_WQE_REACHED");
	if (is_used)
		check(!post_send(qp, 0, p->memory[0], SIZE, p->mr), "ibv_post_send");
	check(!pthread_create(&thread, NULL, destroy, qp), "pthread_create");
	usleep(2000);
	for (int i = 0; i < 200; i++) {
		check(!post_recv(p->to, 1, p->memory[1], SIZE, p->mr), "ibv_post_recv");
		check(!post_send(p->from, 1, p->memory[0], SIZE, p->mr), "ibv_post_send");
		for (int over = 0; over < 2;) {
			struct ibv_wc wc;
			int polled = ibv_poll_cq(p->cq, 1, &wc);
			check(polled >= 0, "ibv_poll_cq");
			over += polled && wc.qp_num != number;
		}
		usleep(100);
	}
	ibv_ack_async_event(&event);
	check(!pthread_join(thread, NULL) && !ibv_destroy_srq(srq), "destroying");
	play(p, 50);
	end(p);
}

/* Creates and uses other queue pairs in an extended poll, while another thread waits to change one of the CQ. */
static void play_in_poll(struct pair *p, struct ibv_cq_ex *cq, void *(*change)(void *), struct ibv_qp *qp)
{
	pthread_t thread;
	struct ibv_poll_cq_attr poll = { 0 };
	while (ibv_start_poll(cq, &poll))
		;
	check(!pthread_create(&thread, NULL, change, qp), "pthread_create");
	usleep(2000);
	destroy(create(p->pd, p->cq, NULL, 1));
	play(p, 50);
	ibv_end_poll(cq);
	check(!pthread_join(thread, NULL), "pthread_join");
}

static void destroyed_in_poll(void)
{
	struct pair *p = make(2);
	struct ibv_cq_init_attr_ex attr = { .cqe = 2 };
	struct ibv_cq_ex *cq = ibv_create_cq_ex(p->context, &attr);
	check(cq != NULL, "ibv_create_cq_ex");
	struct ibv_qp *qp = create(p->pd, ibv_cq_ex_to_cq(cq), NULL, 1);
	struct ibv_qp *doomed = create(p->pd, ibv_cq_ex_to_cq(cq), NULL, 1);
	to_init(qp);
	connect_to(qp, qp->qp_num);
	check(!post_recv(qp, 1, p->memory[1], SIZE, p->mr), "ibv_post_recv");
	check(!post_send(qp, 2, p->memory[0], SIZE, p->mr), "ibv_post_send");
	play_in_poll(p, cq, destroy, doomed);
	destroy(qp);
	check(!ibv_destroy_cq(ibv_cq_ex_to_cq(cq)), "ibv_destroy_cq");
	end(p);
}

/* Uses a new queue pair that has the number of one that another thread destroys, while an extended poll is open. A library may
 * keep the number until the poll has ended. */
static void number_reused(void)
{
	enum { MANY = 150 };
	struct ibv_qp *unused[MANY], *again = NULL;
	pthread_t thread;
	struct pair *p = make(2);
	struct ibv_poll_cq_attr poll = { 0 };
	struct ibv_cq_init_attr_ex attr = { .cqe = 4 };
	struct ibv_cq_ex *ex = ibv_create_cq_ex(p->context, &attr);
	check(ex != NULL, "ibv_create_cq_ex");
	struct ibv_cq *cq = ibv_cq_ex_to_cq(ex);
	struct ibv_qp *qp = create(p->pd, cq, NULL, 1), *doomed = create(p->pd, cq, NULL, 1);
	uint32_t number = doomed->qp_num;
	to_init(qp);
	connect_to(qp, qp->qp_num);
	check(!post_recv(qp, 1, p->memory[1], SIZE, p->mr), "ibv_post_recv");
	check(!post_send(qp, 2, p->memory[0], SIZE, p->mr), "ibv_post_send");
	while (ibv_start_poll(ex, &poll))
		;
	check(!pthread_create(&thread, NULL, destroy, doomed), "pthread_create");
	usleep(100000);
	/* The device gives a number away again once many are free. */
	for (int i = 0; i < MANY; i++)
		unused[i] = create(p->pd, p->cq, NULL, 1);
	for (int i = 0; i < MANY; i++)
		destroy(unused[i]);
	for (int i = 0; i < MANY; i++) {
		unused[i] = create(p->pd, again ? p->cq : cq, NULL, 1);
		if (unused[i]->qp_num == number)
			again = unused[i];
	}
	if (again) {
		to_init(again);
		connect_to(again, number);
		check(!post_recv(again, 3, p->memory[3], SIZE, p->mr), "ibv_post_recv");
		check(!post_send(again, 4, p->memory[2], SIZE, p->mr), "ibv_post_send");
		usleep(100000);
	}
	uint64_t ids = ex->wr_id;
	ibv_end_poll(ex);
	check(!pthread_join(thread, NULL), "pthread_join");
	for (int over = 1; over < (again ? 4 : 2); over++)
		ids += wait_for(cq).wr_id;
	check(ids == (again ? 10 : 3), "each request once");
	for (int i = 0; i < MANY; i++)
		destroy(unused[i]);
	destroy(qp);
	check(!ibv_destroy_cq(cq), "ibv_destroy_cq");
	end(p);
}

static void destroyed(void)
{
	destroyed_with_event(0);
	destroyed_with_event(1);
	destroyed_in_poll();
	number_reused();
}

static struct pair *refusing;

static void poll_once(struct pair *p)
{
	struct ibv_wc wc;
	int count = ibv_poll_cq(p->cq, 1, &wc);
	check(count == 0 || (count == 1 && wc.status == IBV_WC_SUCCESS), "ibv_poll_cq");
}

/* Takes the place of the function of libibverbs through which libmlx5 asks the kernel. */
int ibv_cmd_destroy_qp(struct ibv_qp *qp)
{
	int (*real)(struct ibv_qp *) = (int (*)(struct ibv_qp *))dlsym(RTLD_NEXT, "ibv_cmd_destroy_qp");
	if (!refusing)
		return real(qp);
	for (int i = 0; i < 100; i++, usleep(100))
		poll_once(refusing);
	return EBUSY;
}

/* Polls the CQ of a queue pair while the kernel refuses to destroy it, with bytes in the CQE or not. The queue pair can be used
 * again. */
static void refused(void)
{
	struct pair *p = make(2);
	char *out = p->memory[0], *in = p->memory[1];
	struct ibv_qp *qps[] = { p->from, p->to };
	play(p, 1);
	for (int i = 0; i < 20; i++) {
		memset(out, i + 2, SIZE);
		check(!post_recv(p->to, 1, in, SIZE, p->mr), "ibv_post_recv");
		check(!post_send(p->from, 2, out, SIZE, p->mr), "ibv_post_send");
		refusing = p;
		check(ibv_destroy_qp(qps[i % 2]) == EBUSY, "ibv_destroy_qp: EBUSY");
		refusing = NULL;
		struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RESET };
		for (int j = 0; j < 2; j++)
			check(!ibv_modify_qp(qps[j], &attr, IBV_QP_STATE), "ibv_modify_qp to RESET");
		join_pair(p);
		play(p, 2);
	}
	play(p, 50);
	end(p);
}

/* doorbell refuses a queue pair with features of libmlx5, and then not a plain one on the same CQs. */
static void created_after_refusal(void)
{
	struct pair *p = make(2);
	play(p, 2);
	struct ibv_cq *fresh_cq = ibv_create_cq(p->context, 4, NULL, NULL, 0);
	check(fresh_cq != NULL, "ibv_create_cq");
	struct ibv_qp_init_attr_ex special = {
		.send_cq = p->cq, .recv_cq = fresh_cq, .qp_type = IBV_QPT_UD, .pd = p->pd, .cap = { 1, 1, 1, 1, 0 },
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_CREATE_FLAGS,
		.create_flags = IBV_QP_CREATE_BLOCK_SELF_MCAST_LB,
	};
	struct ibv_qp *qp = ibv_create_qp_ex(p->context, &special);
	if (qp)
		destroy(qp);
	struct ibv_qp_init_attr plain = { .send_cq = p->cq, .recv_cq = fresh_cq, .qp_type = IBV_QPT_RC, .cap = { 1, 1, 1, 1, 0 } };
	qp = ibv_create_qp(p->pd, &plain);
	check(qp != NULL, "ibv_create_qp");
	destroy(qp);
	check(!ibv_destroy_cq(fresh_cq), "ibv_destroy_cq");
	/* A CQ that libmlx5 drives refuses a queue pair, too, and leaves the SRQ free. */
	struct ibv_cq *other_cq = ibv_create_cq(p->context, 4, NULL, NULL, 0);
	struct ibv_srq_init_attr srq_attr = { .attr = { .max_wr = 1, .max_sge = 1 } };
	struct ibv_srq *srq = ibv_create_srq(p->pd, &srq_attr);
	check(other_cq && srq, "creating a CQ and an SRQ");
	special.send_cq = special.recv_cq = other_cq;
	struct ibv_qp *foreign = ibv_create_qp_ex(p->context, &special);
	check(foreign && post_recv(foreign, 1, p->memory[1], SIZE, p->mr), "a queue pair in RESET, which refuses to receive");
	plain.recv_cq = other_cq;
	plain.srq = srq;
	qp = ibv_create_qp(p->pd, &plain);
	if (qp)
		destroy(qp);
	plain.recv_cq = p->cq;
	qp = ibv_create_qp(p->pd, &plain);
	check(qp != NULL, "ibv_create_qp with an SRQ");
	destroy(qp);
	destroy(foreign);
	check(!ibv_destroy_srq(srq) && !ibv_destroy_cq(other_cq), "destroying");
	play(p, 2);
	end(p);
}

/* Posts inline data that is too long and cannot be read: it is refused unread. A queue pair in RESET refuses receives. */
static void inline_refused(void)
{
	struct pair *p = make(2);
	struct ibv_qp *fresh = create(p->pd, p->cq, NULL, 1);
	check(post_recv(fresh, 1, p->memory[1], SIZE, p->mr), "a receive in RESET, which is refused");
	destroy(fresh);
	struct ibv_sge sge = { .length = 100000 };
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_INLINE };
	struct ibv_send_wr *bad = NULL;
	play(p, 1);
	check(ibv_post_send(p->from, &wr, &bad) == ENOMEM && bad == &wr, "refusing inline data");
	play(p, 50);
	end(p);
}

/* An atomic returns eight bytes, whatever the length of its entry. */
static void atomic_lengths(struct pair *p)
{
	struct ibv_mr *mr = ibv_reg_mr(p->pd, p->memory, SIZE, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_ATOMIC);
	struct ibv_qp_attr attr = { .qp_access_flags = IBV_ACCESS_REMOTE_ATOMIC };
	check(mr && !ibv_modify_qp(p->to, &attr, IBV_QP_ACCESS_FLAGS), "allowing atomics");
	uint64_t *at = (uint64_t *)p->memory[0], *old = (uint64_t *)p->memory[1];
	for (uint32_t length = 4; length <= 16; length += 12) {
		struct ibv_sge sge = { .addr = (uintptr_t)old, .length = length, .lkey = p->mr->lkey };
		struct ibv_send_wr *bad, wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_ATOMIC_FETCH_AND_ADD };
		wr.wr.atomic.remote_addr = (uintptr_t)at;
		wr.wr.atomic.rkey = mr->rkey;
		wr.wr.atomic.compare_add = 1;
		*at = (length * 0x100000001ull) << 8;
		check(!ibv_post_send(p->from, &wr, &bad), "ibv_post_send");
		wait_for(p->cq);
		check(*at == *old + 1 && *old == (length * 0x100000001ull) << 8, "the atomic");
	}
	check(!ibv_dereg_mr(mr), "ibv_dereg_mr");
}

/* Lengths of inline data whose sum overflows. */
static void inline_sums(struct pair *p)
{
	struct ibv_qp_init_attr attr = {
		.send_cq = p->cq, .recv_cq = p->cq, .qp_type = IBV_QPT_RC, .sq_sig_all = 1,
		.cap = { .max_send_wr = 4, .max_send_sge = 3, .max_inline_data = 64 },
	};
	struct ibv_qp *qp = ibv_create_qp(p->pd, &attr);
	check(qp != NULL, "ibv_create_qp");
	to_init(qp);
	connect_to(qp, qp->qp_num);
	struct ibv_sge sges[3] = { { .length = 0x7fffffff }, { .length = 0x7fffffff }, { .length = 2 } };
	struct ibv_send_wr *bad = NULL;
	struct ibv_send_wr wr = { .sg_list = sges, .num_sge = 3, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_INLINE };
	check(ibv_post_send(qp, &wr, &bad) == ENOMEM && bad == &wr, "refusing inline data");
	check(!ibv_destroy_qp(qp), "ibv_destroy_qp");
	struct ibv_qp_ex *ex = create_ex(p, p->cq, 4);
	struct ibv_data_buf pieces[2] = { { .length = SIZE_MAX }, { .length = 1 } };
	ibv_wr_start(ex);
	ibv_wr_send(ex);
	ibv_wr_set_inline_data_list(ex, 2, pieces);
	check(ibv_wr_complete(ex) == ENOMEM, "refusing inline data of a batch");
	check(!ibv_destroy_qp(&ex->qp_base), "ibv_destroy_qp");
}

/* Sends a datagram from a queue pair to itself; returns its flags. */
static unsigned datagram(struct pair *p, struct ibv_cq_ex *cq, int is_global)
{
	struct ibv_cq *plain = cq ? ibv_cq_ex_to_cq(cq) : p->cq;
	struct ibv_qp_init_attr init = {
		.send_cq = plain, .recv_cq = plain, .qp_type = IBV_QPT_UD,
		.cap = { .max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1 },
	};
	struct ibv_qp *qp = ibv_create_qp(p->pd, &init);
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = 1 };
	check(qp && !ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY), "INIT");
	attr.qp_state = IBV_QPS_RTR;
	check(!ibv_modify_qp(qp, &attr, IBV_QP_STATE), "RTR");
	attr.qp_state = IBV_QPS_RTS;
	check(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN), "RTS");
	struct ibv_port_attr port;
	struct ibv_ah_attr to = { .is_global = is_global, .port_num = 1, .grh.hop_limit = 1 };
	check(!ibv_query_port(p->context, 1, &port) && !ibv_query_gid(p->context, 1, 0, &to.grh.dgid), "the port");
	to.dlid = port.lid;
	struct ibv_ah *ah = ibv_create_ah(p->pd, &to);
	check(ah && !post_recv(qp, 1, p->memory[2], 3 * SIZE, p->mr), "ibv_post_recv");
	struct ibv_sge sge = { .addr = (uintptr_t)p->memory[0], .length = SIZE, .lkey = p->mr->lkey };
	struct ibv_send_wr *bad, wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND };
	wr.wr.ud.ah = ah;
	wr.wr.ud.remote_qpn = qp->qp_num;
	wr.wr.ud.remote_qkey = 1;
	check(!ibv_post_send(qp, &wr, &bad), "ibv_post_send");
	unsigned flags;
	if (cq) {
		struct ibv_poll_cq_attr none = { 0 };
		while (ibv_start_poll(cq, &none) == ENOENT)
			;
		flags = ibv_wc_read_wc_flags(cq);
		ibv_end_poll(cq);
	} else {
		flags = wait_for(plain).wc_flags;
	}
	check(!ibv_destroy_qp(qp) && !ibv_destroy_ah(ah), "destroying");
	return flags & IBV_WC_GRH;
}

/* Requests and completions at the edges of what programs do. */
static void edges(void)
{
	/* libmlx5 copies the result of an atomic from a CQE in the byte order of the device. */
	setenv("MLX5_SCATTER_TO_CQE", "0", 1);
	struct pair *p = make(4);
	atomic_lengths(p);
	inline_sums(p);
	struct ibv_cq_init_attr_ex attr = { .cqe = 4, .wc_flags = IBV_WC_STANDARD_FLAGS };
	for (int is_global = 0; is_global < 2; is_global++) {
		struct ibv_cq_ex *cq = ibv_create_cq_ex(p->context, &attr);
		check(cq != NULL, "ibv_create_cq_ex");
		check(datagram(p, NULL, is_global) == (is_global ? IBV_WC_GRH : 0), "the flag of a GRH");
		check(datagram(p, cq, is_global) == (is_global ? IBV_WC_GRH : 0), "the flag of a GRH in an extended CQ");
		check(!ibv_destroy_cq(ibv_cq_ex_to_cq(cq)), "ibv_destroy_cq");
	}
	/* No batch is posted before RTS, not even an empty one. */
	struct ibv_qp_ex *ex = create_ex(p, p->cq, 4);
	struct ibv_qp_attr reset = { .qp_state = IBV_QPS_RESET };
	check(!ibv_modify_qp(&ex->qp_base, &reset, IBV_QP_STATE), "RESET");
	to_init(&ex->qp_base);
	ibv_wr_start(ex);
	int empty = ibv_wr_complete(ex);
	ibv_wr_start(ex);
	ibv_wr_send(ex);
	ibv_wr_set_sge(ex, p->mr->lkey, (uintptr_t)p->memory[0], SIZE);
	check(empty == EINVAL && ibv_wr_complete(ex) == EINVAL, "refusing a batch before RTS");
	check(!ibv_destroy_qp(&ex->qp_base), "ibv_destroy_qp");
	play(p, 1);
	end(p);
}

/* Takes a completion of success; returns its opcode. */
static enum ibv_wc_opcode opcode_of(struct ibv_cq_ex *cq, uint64_t id, int is_extended)
{
	struct ibv_poll_cq_attr none = { 0 };
	if (!is_extended) {
		struct ibv_wc wc = wait_for(ibv_cq_ex_to_cq(cq));
		check(wc.wr_id == id, "the order of completions");
		return wc.opcode;
	}
	while (ibv_start_poll(cq, &none) == ENOENT)
		;
	check(cq->status == IBV_WC_SUCCESS && cq->wr_id == id, "the completion");
	enum ibv_wc_opcode opcode = ibv_wc_read_opcode(cq);
	ibv_end_poll(cq);
	return opcode;
}

/* A bind of a window of type 2, which belongs to the queue pair that posts it, and a WRITE through the window: both fill the queue. */
static void bind_and_write(struct pair *p, struct ibv_qp_ex *ex, struct ibv_mw *mw, uint32_t rkey, char *at, int by_builder)
{
	struct ibv_mw_bind_info info = { .mr = p->mr, .addr = (uintptr_t)at, .length = SIZE,
					 .mw_access_flags = IBV_ACCESS_REMOTE_WRITE };
	struct ibv_sge sge = { (uintptr_t)p->memory[0], SIZE, p->mr->lkey };
	if (by_builder) {
		/* What is taken back binds nothing. */
		for (int aborts = 1; aborts >= 0; aborts--) {
			ibv_wr_start(ex);
			ex->wr_id = 1;
			ex->wr_flags = 0;
			ibv_wr_bind_mw(ex, mw, rkey, &info);
			ex->wr_id = 2;
			ibv_wr_rdma_write(ex, rkey, (uintptr_t)at);
			ibv_wr_set_sge(ex, sge.lkey, sge.addr, SIZE);
			if (aborts)
				ibv_wr_abort(ex);
			else
				check(!ibv_wr_complete(ex), "ibv_wr_complete");
		}
		return;
	}
	struct ibv_send_wr *bad, third = { .opcode = IBV_WR_LOCAL_INV, .invalidate_rkey = rkey },
		write = { .wr_id = 2, .next = &third, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE,
			  .wr.rdma = { (uintptr_t)at, rkey } },
		bind = { .wr_id = 1, .next = &write, .opcode = IBV_WR_BIND_MW, .bind_mw = { mw, rkey, info } };
	check(ibv_post_send(&ex->qp_base, &bind, &bad) == ENOMEM && bad == &third, "refusing the third of two requests");
}

/* Invalidates a key by this side. */
static void invalidate(struct ibv_qp_ex *ex, uint32_t rkey, int by_builder)
{
	struct ibv_send_wr *bad, wr = { .wr_id = 3, .opcode = IBV_WR_LOCAL_INV, .invalidate_rkey = rkey };
	if (!by_builder) {
		check(!ibv_post_send(&ex->qp_base, &wr, &bad), "ibv_post_send");
		return;
	}
	ibv_wr_start(ex);
	ex->wr_id = 3;
	ex->wr_flags = 0;
	ibv_wr_local_inv(ex, rkey);
	check(!ibv_wr_complete(ex), "ibv_wr_complete");
}

/* Binds windows and invalidates their keys, by all ways, until each variant of a key was used twice. A key that was invalidated gives
 * no access. */
static void windows(void)
{
	struct pair *p = make(2);
	ibv_dereg_mr(p->mr);
	p->mr = ibv_reg_mr(p->pd, p->memory, sizeof p->memory, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND);
	struct ibv_cq_init_attr_ex attr = { .cqe = 4 };
	struct ibv_cq_ex *cq = ibv_create_cq_ex(p->context, &attr);
	struct ibv_mw *mw = ibv_alloc_mw(p->pd, IBV_MW_TYPE_2), *first = ibv_alloc_mw(p->pd, IBV_MW_TYPE_1);
	check(p->mr && cq && mw && first, "creating the objects");
	struct ibv_qp_ex *ex = create_for(p, ibv_cq_ex_to_cq(cq), 2,
					  IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_BIND_MW | IBV_QP_EX_WITH_LOCAL_INV);
	struct ibv_qp *qp = &ex->qp_base;
	struct ibv_qp_attr writable = { .qp_access_flags = IBV_ACCESS_REMOTE_WRITE };
	check(!ibv_modify_qp(qp, &writable, IBV_QP_ACCESS_FLAGS), "ibv_modify_qp");
	uint32_t rkey = mw->rkey;
	for (int i = 0; i < 520; i++) {
		int by_builder = i % 2, is_extended = i / 2 % 2, by_peer = i / 4 % 2;
		char *out = p->memory[0], *at = p->memory[1 + i % (DEPTH - 1)];
		memset(out, i + 1, SIZE);
		rkey = ibv_inc_rkey(rkey);
		bind_and_write(p, ex, mw, rkey, at, by_builder);
		check(opcode_of(cq, 1, is_extended) == IBV_WC_BIND_MW, "the opcode of a bind");
		check(opcode_of(cq, 2, is_extended) == IBV_WC_RDMA_WRITE, "the opcode of a WRITE");
		check(!memcmp(at, out, SIZE), "the WRITE through the window");
		if (!by_peer) {
			invalidate(ex, rkey, by_builder);
			check(opcode_of(cq, 3, is_extended) == IBV_WC_LOCAL_INV, "the opcode of an invalidation");
			continue;
		}
		struct ibv_sge sge = { (uintptr_t)out, SIZE, p->mr->lkey };
		struct ibv_send_wr *bad, wr = { .wr_id = 5, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND_WITH_INV,
						.invalidate_rkey = rkey };
		check(!post_recv(qp, 4, at, SIZE, p->mr) && !ibv_post_send(qp, &wr, &bad), "posting");
		struct ibv_wc got = wait_for(ibv_cq_ex_to_cq(cq)), sent = wait_for(ibv_cq_ex_to_cq(cq));
		if (got.wr_id == 5) {
			struct ibv_wc first_one = got;
			got = sent;
			sent = first_one;
		}
		check(got.wr_id == 4 && got.wc_flags & IBV_WC_WITH_INV && got.invalidated_rkey == rkey, "the invalidated key");
		check(sent.wr_id == 5 && sent.opcode == IBV_WC_SEND, "the SEND with invalidate");
	}
	/* A window of type 1 is bound again while it is bound, and unbound by a bind of no bytes. */
	for (int i = 0; i < 20; i++) {
		uint32_t before = first->rkey;
		struct ibv_mw_bind bind = { .wr_id = 6, .bind_info = { .mr = p->mr, .addr = (uintptr_t)p->memory[1], .length = SIZE,
								       .mw_access_flags = IBV_ACCESS_REMOTE_WRITE } };
		if (i % 5 == 4)
			bind.bind_info = (struct ibv_mw_bind_info){ 0 };
		check(!ibv_bind_mw(qp, first, &bind) && first->rkey == ibv_inc_rkey(before), "ibv_bind_mw");
		check(opcode_of(cq, 6, i % 2) == IBV_WC_BIND_MW, "the opcode of a bind");
	}
	struct ibv_mw_bind zero_based = { .bind_info.mw_access_flags = IBV_ACCESS_ZERO_BASED };
	check(ibv_bind_mw(qp, first, &zero_based) == EINVAL, "refusing a zero-based window of type 1");
	/* More than the entry of a window counts. */
	struct ibv_mw_bind_info huge = { .mr = p->mr, .addr = 1, .length = (1ull << 31) + 1 };
	struct ibv_send_wr *bad = NULL, wr = { .opcode = IBV_WR_BIND_MW, .bind_mw = { mw, rkey + 1, huge } };
	check(ibv_post_send(qp, &wr, &bad) == EOPNOTSUPP && bad == &wr, "refusing a bind of over 2 GiB");
	ibv_wr_start(ex);
	ibv_wr_bind_mw(ex, mw, rkey + 1, &huge);
	check(ibv_wr_complete(ex) == EOPNOTSUPP, "refusing a bind of over 2 GiB in a batch");
	/* The key was invalidated. */
	struct ibv_sge sge = { (uintptr_t)p->memory[0], SIZE, p->mr->lkey };
	wr = (struct ibv_send_wr){ .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE,
				   .wr.rdma = { (uintptr_t)p->memory[1], rkey } };
	struct ibv_wc wc = { 0 };
	memset(p->memory[1], 0, SIZE);
	check(!ibv_post_send(qp, &wr, &bad), "ibv_post_send");
	while (!ibv_poll_cq(ibv_cq_ex_to_cq(cq), 1, &wc))
		;
	/* The queue pair is its own peer, and may fail as such before it hears of the refusal. */
	check(wc.status != IBV_WC_SUCCESS && !p->memory[1][0], "refusing a WRITE through a key that was invalidated");
	check(!ibv_destroy_qp(qp) && !ibv_dealloc_mw(mw) && !ibv_dealloc_mw(first), "destroying");
	check(!ibv_destroy_cq(ibv_cq_ex_to_cq(cq)), "ibv_destroy_cq");
	end(p);
}

/* The device writes the 40th completion of a receive twice: the completions before it are not lost. */
static void stray(void)
{
	struct pair *p = make(64);
	static struct ibv_wc wc[128];
	int taken = 0, got = 0;
	for (int i = 0; i < 40; i++)
		check(!post_recv(p->to, i, p->memory[1], SIZE, p->mr) &&
		      !post_send(p->from, i, p->memory[0], SIZE, p->mr), "posting");
	usleep(200000);
	while ((got = ibv_poll_cq(p->cq, 128, wc)) > 0 || (got == 0 && taken < 80))
		taken += got;
	check(taken >= 40 && got == -2, "the completions before a stray one");
	_exit(0);
}

/* Receives and reads into a dma-buf, at addresses that only the device knows. */
static void opaque(void)
{
	enum { PLACE = 4096, LENGTH = 8 };
	uint64_t place = 1ull << 40;
	struct pair *p = make(2);
	int fd = memfd_create("opaque", MFD_CLOEXEC);
	check(fd >= 0 && !ftruncate(fd, PLACE), "memfd_create");
	char *bytes = mmap(NULL, PLACE, PROT_READ, MAP_SHARED, fd, 0);
	struct ibv_mr *mr = ibv_reg_dmabuf_mr(p->pd, 0, PLACE, place, fd, IBV_ACCESS_LOCAL_WRITE);
	struct ibv_mr *from = ibv_reg_mr(p->pd, p->memory, sizeof p->memory, IBV_ACCESS_REMOTE_READ);
	struct ibv_qp_attr attr = { .qp_access_flags = IBV_ACCESS_REMOTE_READ };
	check(bytes != MAP_FAILED && mr && from, "registering memory");
	check(!ibv_modify_qp(p->to, &attr, IBV_QP_ACCESS_FLAGS), "ibv_modify_qp");
	strcpy(p->memory[0], "a message and a READ");

	check(!post_recv(p->to, 1, (void *)place, LENGTH, mr), "ibv_post_recv");
	check(!post_send(p->from, 2, p->memory[0], LENGTH, p->mr), "ibv_post_send");
	check(wait_for(p->cq).wr_id + wait_for(p->cq).wr_id == 3, "the message");
	struct ibv_sge sge = { .addr = place + LENGTH, .length = LENGTH, .lkey = mr->lkey };
	struct ibv_send_wr *bad, wr = { .wr_id = 4, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_READ };
	wr.wr.rdma.remote_addr = (uintptr_t)p->memory[0] + LENGTH;
	wr.wr.rdma.rkey = from->rkey;
	check(!ibv_post_send(p->from, &wr, &bad) && wait_for(p->cq).wr_id == 4, "the READ");
	check(!memcmp(bytes, p->memory[0], 2 * LENGTH), "the bytes");

	check(!ibv_dereg_mr(mr) && !ibv_dereg_mr(from) && !munmap(bytes, PLACE) && !close(fd), "destroying");
	end(p);
}

/* Polls between the calls of a batch of the same queue pair. */
static void batch(void)
{
	struct pair *p = make(2);
	struct ibv_qp_ex *ex = create_ex(p, p->cq, 2);
	struct ibv_qp *qp = &ex->qp_base;
	int over = 0;
	/* Outside of a batch, before the first one: it has no effect. */
	ex->wr_id = 100;
	ex->wr_flags = 0;
	ibv_wr_send(ex);
	for (int i = 0; i < 50; i++) {
		check(!post_recv(qp, i, p->memory[1], SIZE, p->mr), "ibv_post_recv");
		ibv_wr_start(ex);
		/* The message of the batch before, which is on its way. */
		for (; over < 2 * i; over++)
			wait_for(p->cq);
		ex->wr_id = i;
		ex->wr_flags = 0;
		ibv_wr_send(ex);
		struct ibv_wc none;
		check(ibv_poll_cq(p->cq, 1, &none) == 0, "ibv_poll_cq");
		ibv_wr_set_sge(ex, p->mr->lkey, (uintptr_t)p->memory[0], SIZE);
		check(!ibv_wr_complete(ex), "ibv_wr_complete");
	}
	for (; over < 100; over++)
		wait_for(p->cq);
	/* A batch with a request that has too many SGEs is not posted. */
	struct ibv_sge two[2] = { { .addr = (uintptr_t)p->memory[0], .length = 1, .lkey = p->mr->lkey } };
	two[1] = two[0];
	ibv_wr_start(ex);
	ibv_wr_send(ex);
	ibv_wr_set_sge_list(ex, 2, two);
	check(ibv_wr_complete(ex) == ENOMEM, "ibv_wr_complete");
	check(!post_recv(qp, 1, p->memory[1], SIZE, p->mr), "ibv_post_recv");
	send_by_builder(p, ex, 2);
	check(wait_for(p->cq).wr_id + wait_for(p->cq).wr_id == 3, "the completions");
	check(!ibv_destroy_qp(qp), "ibv_destroy_qp");
	end(p);
}

static struct ibv_cq_ex *contended;
static atomic_int taken, rounds, ended;

/* Polls a CQ, with both interfaces in turn, until the batch has ended. */
static void *poll_on(void *nothing)
{
	struct ibv_poll_cq_attr attr = { 0 };
	struct ibv_wc wc;
	for (; !ended; rounds++) {
		if (ibv_start_poll(contended, &attr) == 0) {
			check(contended->status == IBV_WC_SUCCESS, "the completion");
			taken++;
			ibv_end_poll(contended);
		}
		taken += ibv_poll_cq(ibv_cq_ex_to_cq(contended), 1, &wc);
	}
	return nothing;
}

/* Polls in a batch while another thread polls for a request of the same queue pair. */
static void contended_batch(void)
{
	struct pair *p = make(2);
	struct ibv_cq_init_attr_ex attr = { .cqe = 2, .channel = ibv_create_comp_channel(p->context) };
	contended = attr.channel ? ibv_create_cq_ex(p->context, &attr) : NULL;
	check(contended != NULL, "ibv_create_cq_ex");
	struct ibv_cq *cq = ibv_cq_ex_to_cq(contended);
	struct ibv_qp_ex *ex = create_ex(p, cq, 2);
	struct ibv_qp *qp = &ex->qp_base;
	for (int i = 0; i < 10; i++) {
		pthread_t thread;
		taken = rounds = ended = 0;
		check(!ibv_req_notify_cq(cq, 0), "ibv_req_notify_cq");
		check(!post_recv(qp, i, p->memory[1], SIZE, p->mr), "ibv_post_recv");
		check(!post_send(qp, i, p->memory[0], SIZE, p->mr), "ibv_post_send");
		struct ibv_cq *signaled;
		void *context;
		check(!ibv_get_cq_event(attr.channel, &signaled, &context), "ibv_get_cq_event");
		ibv_ack_cq_events(signaled, 1);
		ibv_wr_start(ex);
		check(!pthread_create(&thread, NULL, poll_on, NULL), "pthread_create");
		/* The other thread comes to the send, and does not wait for the end of the batch. */
		while (rounds < 10)
			;
		while (taken < 2) {
			struct ibv_wc wc;
			taken += ibv_poll_cq(cq, 1, &wc);
		}
		ibv_wr_abort(ex);
		ended = 1;
		check(!pthread_join(thread, NULL), "pthread_join");
	}
	check(!ibv_destroy_qp(qp) && !ibv_destroy_cq(cq), "destroying");
	check(!ibv_destroy_comp_channel(attr.channel), "ibv_destroy_comp_channel");
	end(p);
}

static void *reset(void *qp)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RESET };
	check(!ibv_modify_qp(qp, &attr, IBV_QP_STATE), "ibv_modify_qp to RESET");
	return NULL;
}

static void *bring_up(void *qp)
{
	to_init(qp);
	connect_to(qp, ((struct ibv_qp *)qp)->qp_num);
	return NULL;
}

/* Changes a queue pair in a batch, and polls in an extended poll, while another thread waits to reset one. */
static void reset_by_another(void)
{
	struct pair *p = make(2);
	struct ibv_cq_init_attr_ex attr = { .cqe = 2 };
	struct ibv_cq_ex *cq = ibv_create_cq_ex(p->context, &attr);
	check(cq != NULL, "ibv_create_cq_ex");
	struct ibv_qp_ex *ex = create_ex(p, ibv_cq_ex_to_cq(cq), 2);
	struct ibv_qp *qp = &ex->qp_base;
	struct ibv_qp_attr rts = { .qp_state = IBV_QPS_RTS }, zero = { .qp_state = IBV_QPS_RESET };
	ibv_wr_start(ex);
	/* libmlx5 would put its own function to end the batch in the place of doorbell's. */
	int error = ibv_modify_qp(qp, &rts, IBV_QP_STATE);
	check(!error || error == EBUSY, "ibv_modify_qp in a batch");
	check(!error || ibv_modify_qp(qp, &zero, IBV_QP_STATE) == EBUSY, "ibv_modify_qp in a batch");
	play(p, 50);
	ibv_wr_abort(ex);
	reset(qp);
	bring_up(qp);
	check(!post_recv(qp, 1, p->memory[1], SIZE, p->mr), "ibv_post_recv");
	send_by_builder(p, ex, 2);
	check(wait_for(ibv_cq_ex_to_cq(cq)).wr_id + wait_for(ibv_cq_ex_to_cq(cq)).wr_id == 3, "the completions");
	destroy(qp);

	/* The receives of one queue pair complete where another one is polled. */
	struct ibv_qp_init_attr two = {
		.send_cq = ibv_cq_ex_to_cq(cq), .recv_cq = p->cq, .qp_type = IBV_QPT_RC, .sq_sig_all = 1,
		.cap = { .max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1 },
	};
	check((qp = ibv_create_qp(p->pd, &two)) != NULL, "ibv_create_qp");
	bring_up(qp);
	check(!post_recv(qp, 1, p->memory[1], SIZE, p->mr), "ibv_post_recv");
	check(!post_send(qp, 1, p->memory[0], SIZE, p->mr), "ibv_post_send");
	wait_for(p->cq);
	play_in_poll(p, cq, reset, qp);
	destroy(qp);
	check(!ibv_destroy_cq(ibv_cq_ex_to_cq(cq)), "ibv_destroy_cq");
	end(p);
}

/* Polls CQs and arms one before they have a queue pair, and resizes one, which then stays with libmlx5. */
static void before(void)
{
	struct pair *p = make(2);
	struct ibv_comp_channel *channel = ibv_create_comp_channel(p->context);
	struct ibv_cq *resized = ibv_create_cq(p->context, 4, NULL, NULL, 0);
	struct ibv_cq_init_attr_ex attr = { .cqe = 4, .channel = channel };
	struct ibv_cq_ex *cq = ibv_create_cq_ex(p->context, &attr);
	struct ibv_poll_cq_attr poll = { 0 };
	struct ibv_wc wc;
	check(channel && resized && cq && !ibv_resize_cq(resized, 100), "creating the objects");
	check(!ibv_req_notify_cq(ibv_cq_ex_to_cq(cq), 0) && ibv_start_poll(cq, &poll) == ENOENT, "an empty CQ");
	check(!ibv_poll_cq(ibv_cq_ex_to_cq(cq), 1, &wc) && !ibv_poll_cq(resized, 1, &wc), "ibv_poll_cq");
	struct ibv_cq *cqs[] = { ibv_cq_ex_to_cq(cq), resized };
	for (int i = 0; i < 2; i++) {
		struct ibv_qp_ex *ex = create_ex(p, cqs[i], 2);
		struct ibv_cq *signaled = cqs[0];
		void *context;
		for (int round = 0; round < 5; round++) {
			check(!post_recv(&ex->qp_base, 1, p->memory[1], SIZE, p->mr), "ibv_post_recv");
			send_by_builder(p, ex, 2);
			check(i || !ibv_get_cq_event(channel, &signaled, &context), "ibv_get_cq_event");
			check(wait_for(cqs[i]).wr_id + wait_for(cqs[i]).wr_id == 3, "the completions");
			check(i || !ibv_req_notify_cq(signaled, 0), "ibv_req_notify_cq");
		}
		struct ibv_poll_cq_attr unknown = { .comp_mask = 1 };
		check(i || ibv_start_poll(cq, &unknown) == EINVAL, "an unknown attribute, which is refused");
		if (!i)
			ibv_ack_cq_events(signaled, 5);
		destroy(&ex->qp_base);
	}
	check(!ibv_destroy_cq(cqs[0]) && !ibv_destroy_cq(resized), "ibv_destroy_cq");
	check(!ibv_destroy_comp_channel(channel), "ibv_destroy_comp_channel");
	end(p);
}

static struct pair *posted_to;
static atomic_int pauses, is_paused, ends;

static void *post_receives(void *unused)
{
	struct pair *p = posted_to;
	while (!ends) {
		is_paused = pauses;
		if (pauses)
			usleep(20);
		else
			post_recv(p->to, 1, p->memory[1], SIZE, p->mr);
	}
	return unused;
}

/* Takes a queue pair through RESET while another thread posts receives to it, and then fills and empties it. */
static void reset_beside_posts(void)
{
	pthread_t thread;
	struct pair *p = posted_to = make(DEPTH);
	struct ibv_qp_attr reset = { .qp_state = IBV_QPS_RESET };
	play(p, 1);
	check(!pthread_create(&thread, NULL, post_receives, NULL), "pthread_create");
	for (int round = 0; round < 300; round++) {
		usleep(round % 7 * 40);
		check(!ibv_modify_qp(p->to, &reset, IBV_QP_STATE) && !ibv_modify_qp(p->from, &reset, IBV_QP_STATE), "RESET");
		usleep(round % 3 * 30);
		join_pair(p);
		pauses = 1;
		while (!is_paused)
			usleep(20);
		while (!post_recv(p->to, 1, p->memory[1], SIZE, p->mr))
			;
		for (int i = 0; i < DEPTH; i++)
			check(!post_send(p->from, 1, p->memory[0], SIZE, p->mr), "ibv_post_send");
		for (int i = 0; i < 2 * DEPTH; i++)
			wait_for(p->cq);
		pauses = 0;
	}
	ends = 1;
	check(!pthread_join(thread, NULL), "pthread_join");
	end(p);
}

static struct ibv_cq *apart_cq;
static atomic_int apart_over, apart_ends;

/* Polls completions, which come in order. */
static void *poll_apart(void *nothing)
{
	struct ibv_wc wc[3];
	while (!apart_ends) {
		int polled = ibv_poll_cq(apart_cq, 3, wc);
		check(polled >= 0, "ibv_poll_cq");
		for (int i = 0; i < polled; i++) {
			check(wc[i].status == IBV_WC_SUCCESS && (int)wc[i].wr_id == apart_over, "the completion");
			apart_over++;
		}
		if (!polled)
			sched_yield();
	}
	return nothing;
}

/* Posts what fits of a list or of a batch; returns how many requests that are. A batch that is too long is aborted. */
static int post_some(struct pair *p, struct ibv_qp_ex *ex, int first, int count, int by_builder)
{
	enum { MOST = 2 * DEPTH };
	static struct ibv_send_wr wr[MOST], *bad;
	struct ibv_sge sge = { (uintptr_t)p->memory[0], SIZE, p->mr->lkey };
	if (!by_builder) {
		for (int i = 0; i < count; i++)
			wr[i] = (struct ibv_send_wr){ .wr_id = first + i, .next = i + 1 < count ? &wr[i + 1] : NULL, .sg_list = &sge,
						      .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE,
						      .wr.rdma = { (uintptr_t)p->memory[1], p->mr->rkey } };
		int error = ibv_post_send(&ex->qp_base, wr, &bad);
		check(!error || error == ENOMEM, "ibv_post_send");
		return error ? bad - wr : count;
	}
	ibv_wr_start(ex);
	for (int i = 0; i < count; i++) {
		ex->wr_id = first + i;
		ex->wr_flags = 0;
		ibv_wr_rdma_write(ex, p->mr->rkey, (uintptr_t)p->memory[1]);
		ibv_wr_set_sge(ex, p->mr->lkey, sge.addr, SIZE);
	}
	if (count % 5 == 0) {
		ibv_wr_abort(ex);
		return 0;
	}
	int error = ibv_wr_complete(ex);
	check(!error || error == ENOMEM, "ibv_wr_complete");
	return error ? 0 : count;
}

/* Posts in one thread and polls in another. The queue is often full, and is reset between rounds. */
static void apart(void)
{
	struct pair *p = make(2);
	ibv_dereg_mr(p->mr);
	p->mr = ibv_reg_mr(p->pd, p->memory, sizeof p->memory, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	/* Room for what a poll has taken and not given back: libmlx5, too, lets a CQ with an entry for each request overrun. */
	apart_cq = ibv_create_cq(p->context, DEPTH + 3, NULL, NULL, 0);
	check(p->mr && apart_cq, "creating the objects");
	struct ibv_qp_ex *ex = create_ex(p, apart_cq, DEPTH);
	struct ibv_qp_attr writable = { .qp_access_flags = IBV_ACCESS_REMOTE_WRITE };
	unsigned seed = 1;
	for (int round = 0; round < 50; round++) {
		pthread_t thread;
		check(!ibv_modify_qp(&ex->qp_base, &writable, IBV_QP_ACCESS_FLAGS), "ibv_modify_qp");
		apart_over = apart_ends = 0;
		check(!pthread_create(&thread, NULL, poll_apart, NULL), "pthread_create");
		int posted = 0;
		while (posted < 500) {
			int more = post_some(p, ex, posted, 1 + rand_r(&seed) % (2 * DEPTH), rand_r(&seed) % 2);
			posted += more;
			if (!more)
				sched_yield();
		}
		while (apart_over < posted)
			sched_yield();
		apart_ends = 1;
		check(!pthread_join(thread, NULL), "pthread_join");
		/* What nobody polls goes with the reset. */
		post_some(p, ex, 0, DEPTH, 0);
		reset(&ex->qp_base);
		bring_up(&ex->qp_base);
	}
	check(!ibv_destroy_qp(&ex->qp_base) && !ibv_destroy_cq(apart_cq), "destroying");
	end(p);
}

static void *play_on(void *pair)
{
	play(pair, 1 << 20);
	return NULL;
}

/* Ends while a thread posts and polls. */
static void interrupted(void (*by)(void))
{
	pthread_t thread;
	struct pair *p = make(DEPTH), *other = make(DEPTH);
	play(p, 50);
	check(!pthread_create(&thread, NULL, play_on, p), "pthread_create");
	play(other, 50);
	by();
}

static void aborts(void) { interrupted(abort); }
static void exit_0(void) { exit(0); }
static void exits(void) { interrupted(exit_0); }

static const struct { const char *name; void (*run)(void); } modes[] = {
	{ "fork", forked }, { "contexts", contexts }, { "threads", threads }, { "before", before },
	{ "destroy", destroyed }, { "refuse", refused }, { "inline", inline_refused }, { "batch", batch },
	{ "contended-batch", contended_batch }, { "reset-by-another", reset_by_another },
	{ "reset-beside-posts", reset_beside_posts }, { "refused-creation", created_after_refusal },
	{ "apart", apart }, { "opaque", opaque }, { "edges", edges }, { "windows", windows }, { "stray", stray }, { "abort", aborts }, { "exit", exits },
#ifdef ATTACH
	{ "attach", attached }, { "attach-while-destroyed", attached_while_destroyed },
#endif
};

int main(int argc, char **argv)
{
	const char *mode = argc > 1 ? argv[1] : "";
	size_t at = 0;
	while (at < sizeof modes / sizeof *modes && strcmp(mode, modes[at].name))
		at++;
	check(at < sizeof modes / sizeof *modes, "the first argument: drop_in");
	modes[at].run();
	printf("%s: ok\n", mode);
	return 0;
}
#endif
