package measure

import (
	"context"
	"errors"

	"github.com/portway/portway/bench/internal/load"
)

// withAffinity is how many of the background Services bind clients while their
// cost is measured.
const withAffinity = 1000

// affinity measures the change of one endpoint once more, while many Services and
// half of the canaries have session affinity.
func (r *run) affinity(ctx context.Context) (err error) {
	var bound []load.Service
	for i := range min(withAffinity, r.Services) {
		bound = append(bound, load.Background(i))
	}
	for i := range load.Canaries / 2 {
		bound = append(bound, load.Canary(i))
	}
	defer func() { err = errors.Join(err, r.Cluster.SetAffinity(context.WithoutCancel(ctx), bound, false)) }()
	if err := r.Cluster.SetAffinity(ctx, bound, true); err != nil {
		return err
	}
	if err := errors.Join(pause(ctx, apart), r.settle(ctx)); err != nil {
		return err
	}
	w := r.watch(ctx)
	defer func() { err = errors.Join(err, w.close()) }()
	return r.replacements(ctx, w, "affinity")
}
