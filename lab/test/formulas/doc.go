// Package formulas compares formulas of the product with those of a library that the product
// cannot have: it is compiled with the modules of Kubernetes only.
package formulas
