// Package conventions checks what the linter cannot see: lengths of files, the
// documents that each module has, one version of each dependency, and names that
// must not be in the tree.
package conventions
