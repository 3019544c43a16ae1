// The types that a dashboard of deploy/monitoring/grafana has, made of those of Grafana. JSON has
// the values of enumerations, where the types have their names.
import type { Dashboard, DataQuery, FieldConfig, Panel, RowPanel, VariableModel } from '@grafana/schema';
import type { Options as StatOptions } from '@grafana/schema/dist/esm/raw/composable/stat/panelcfg/x/StatPanelCfg_types.gen';
import type { FieldConfig as TimeSeriesCustom, Options as TimeSeriesOptions } from '@grafana/schema/dist/esm/raw/composable/timeseries/panelcfg/x/TimeSeriesPanelCfg_types.gen';

type Plain<T> = unknown extends T ? T
  : T extends string ? `${T}`
  : T extends (infer U)[] ? Plain<U>[]
  : T extends object ? { [K in keyof T]: Plain<T[K]> }
  : T;

type Source = { type: 'prometheus'; uid: '${datasource}' };

// The package has no type for queries of Prometheus.
type Query = Omit<Plain<DataQuery>, 'datasource'> & {
  datasource: Source;
  expr: string;
  legendFormat: string;
  instant: boolean;
  range: boolean;
};

// Of core panels, so that no plugin has to be installed.
type Chart<Kind, Options, Custom> = Omit<Plain<Panel>, 'type' | 'title' | 'description' | 'datasource' | 'targets' | 'options' | 'fieldConfig'> & {
  type: Kind;
  title: string;
  description: string;
  datasource: Source;
  targets: Query[];
  options: Plain<Options>;
  fieldConfig: {
    defaults: Omit<Plain<FieldConfig>, 'custom' | 'unit'> & { unit: string; custom?: Plain<Custom> };
    overrides: [];
  };
};

type Shown =
  | Chart<'timeseries', TimeSeriesOptions, TimeSeriesCustom>
  | Chart<'stat', StatOptions, Record<string, never>>
  | Plain<RowPanel>;

type Variable = Omit<Plain<VariableModel>, 'datasource'> & { datasource?: Source };

export type Shipped = Omit<Plain<Dashboard>, 'panels' | 'templating' | 'uid' | 'title' | 'description'> & {
  uid: string;
  title: string;
  description: string;
  panels: Shown[];
  templating: { list: Variable[] };
};
