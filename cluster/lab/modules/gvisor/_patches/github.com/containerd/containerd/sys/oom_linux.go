// Package sys: how gVisor's shim asks the kernel to spare or to prefer a process when memory ends.
// Where the machine itself may not spare anybody (no CAP_SYS_RESOURCE), that is not a reason to fail.
package sys

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"
)

const (
	OOMScoreAdjMin = -1000
	OOMScoreAdjMax = 1000
)

func scoreFile(pid int) string {
	return fmt.Sprintf("/proc/%d/oom_score_adj", pid)
}

// AdjustOOMScore sets the score of a process.
func AdjustOOMScore(pid, score int) error {
	return SetOOMScore(pid, score)
}

// SetOOMScore sets the score of a process; a refusal for want of rights is no error.
func SetOOMScore(pid, score int) error {
	err := os.WriteFile(scoreFile(pid), []byte(strconv.Itoa(score)), 0o644)
	if errors.Is(err, fs.ErrPermission) {
		return nil
	}
	return err
}

// GetOOMScoreAdj returns the score of a process.
func GetOOMScoreAdj(pid int) (int, error) {
	text, err := os.ReadFile(scoreFile(pid))
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimSpace(string(text)))
}
