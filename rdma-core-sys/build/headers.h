#include <infiniband/verbs.h>
#include <infiniband/tm_types.h>
#include <infiniband/mlx5dv.h>
