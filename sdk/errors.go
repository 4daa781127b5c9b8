package sdk

import (
	"context"
	"errors"
	"syscall"

	"github.com/fairlead-cni/fairlead/invoke"
	"github.com/fairlead-cni/fairlead/ipam"
	"github.com/fairlead-cni/fairlead/kernel"
	"github.com/fairlead-cni/fairlead/spec"
)

// document converts err to the error document that a plugin prints. It is the only place that maps causes to codes
// (clause P8). If err wraps a *spec.Error, that error's code is used.
func document(err error) *spec.Error {
	for _, c := range []struct {
		cause error
		code  spec.Code
	}{
		{ipam.ErrExhausted, spec.CodeTryAgain},
		{kernel.ErrHostNamespace, spec.CodeNetns},
		{kernel.ErrNotNamespace, spec.CodeEnvironment},
		{kernel.ErrNoNamespace, spec.CodeEnvironment},
		{invoke.ErrNotFound, spec.CodeConfig},
		{context.DeadlineExceeded, spec.CodeTryAgain},
		{context.Canceled, spec.CodeTryAgain},
		{syscall.EBUSY, spec.CodeTryAgain},
		{syscall.EINTR, spec.CodeTryAgain},
		{syscall.ENOSPC, spec.CodeIO},
		{syscall.EIO, spec.CodeIO},
		{syscall.EROFS, spec.CodeIO},
	} {
		if errors.Is(err, c.cause) {
			return spec.AsError(err, c.code)
		}
	}
	return spec.AsError(err, spec.CodeInternal)
}

// withCode gives err the code, whatever code its causes map to.
func withCode(code spec.Code, err error) error {
	return spec.Errorf(code, "%w", err)
}
